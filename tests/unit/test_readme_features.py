# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Require a test for each feature that the README lists: its playbooks, tags, scripts and injected faults.

The file of that test has to name the feature too, so that a test that now shows another one is noticed.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = {
    "site": "test_site_ends_with_every_rank_on_rdma_over_both_rails",
    "plan": "test_an_example_is_planned_as_it_stands",
    "preflight": "test_every_block_of_the_page_runs_in_its_order",
    "inventory_new": "test_site_serves_the_hosts_of_a_layout_with_the_inventory_that_was_written",
    "discover": "test_a_miswired_ring_is_named",
    "fabric": "test_controller_killed_before_it_confirms",
    "tune": "test_the_group_is_stopped_and_comes_back_while_ssh_answers",
    "kubernetes": "test_a_third_node_is_added_while_a_group_keeps_serving",
    "rights": "test_a_group_is_served_proved_shown_and_stopped_with_exactly_these_rights",
    "render": "test_two_runs_write_the_same_bytes",
    "serve": "test_a_group_is_served_and_a_second_run_changes_nothing",
    "serve_status": "test_a_group_is_served_and_a_second_run_changes_nothing",
    "serve_stop": "test_stopping_deletes_everything_and_returns_the_vfs",
    "update": "test_a_node_whose_check_fails_boots_the_kernel_from_before_and_ends_the_run",
    "chat": "test_a_group_answers_a_question_and_its_logs_are_shown",
    "logs": "test_a_group_answers_a_question_and_its_logs_are_shown",
    "shutdown": "test_a_section_of_the_page_does_what_it_says",
    "models": "test_one_node_downloads_and_three_copy_over_the_fabric",
    "profile_new": "test_the_playbook_writes_a_profile_and_facts_from_a_configuration",
    "verify": "test_a_healthy_group_is_proved_by_log_counters_and_rank_labels",
    "latency": "test_latency_is_measured_and_the_share_of_the_fabric_stated",
    "compare_transports": "test_both_transports_are_proved_measured_and_compared",
    "bench": "test_bench_records_beside_the_user_s_own_files",
    "sweep": "test_six_cells_end_correctly_although_the_controller_is_killed_once_and_interrupted_once",
    "report": "test_a_sweep_of_two_cells_is_measured_and_reported",
    "compare": "test_a_sweep_compared_with_itself_has_no_regression",
    "fabric_restore": "test_restore_returns_the_earlier_addresses_and_mtu_and_a_second_restore_redoes_the_change",
    "gateway": "test_the_gateway_has_key_and_certificate_and_nothing_shows_the_key",
    "monitoring": "test_the_owners_prometheus_scrapes_the_ranks_and_the_gateway_and_has_all_alerts",
    "support_bundle": "test_the_bundle_of_a_broken_group_has_the_cause_and_no_secret",
    "doctor": "test_the_facts_of_all_hosts_are_written_also_if_a_finding_is_an_error",
    "upgrade": "test_an_upgrade_that_is_killed_three_times_completes_and_the_transport_is_gated",
    "reset": "test_reset_leaves_nothing",
    "backup": "test_a_backup_restores_the_state_of_its_time",
    "restore": "test_a_backup_restores_the_state_of_its_time",
    "unprivileged": "test_a_fault_ends_the_run_with_rank_cause_and_remedy",
    "no-vf-address": "test_a_fault_ends_the_run_with_rank_cause_and_remedy",
    "missing-nad": "test_a_fault_ends_the_run_with_rank_cause_and_remedy",
    "nccl_verdict": "test_a_script_needs_only_python_and_contacts_no_host",
    "sglang_check": "test_a_script_needs_only_python_and_contacts_no_host",
    "sglang_rows": "test_a_script_needs_only_python_and_contacts_no_host",
    "output_guard": "test_a_script_needs_only_python_and_contacts_no_host",
    "fabric_plan": "test_every_inventory_of_the_repository_is_planned",
    "sglang_profiles": "test_one_preset_on_one_release",
    "sweep_check": "test_sweeps_that_ship_are_listed_with_their_cells",
    "troubleshooting": "test_a_message_is_looked_up_by_its_name_its_line_or_its_words",
}


def features() -> set[str]:
    """Return the names in the first column of the tables, of the faults and of the scripts."""
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", README, flags=re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"\w+", cell)}
    return named | set(re.findall(r"FAULT=([\w-]+)|", README)) | set(re.findall(r"scripts/(\w+)\.py", README)) - {""}


def test_the_readme_lists_every_playbook() -> None:
    parts = {"check", "planned", "group_start", "group_stop"}  # of other playbooks
    assert {path.stem for path in ROOT.glob("playbooks/*.yml")} - parts <= features()


def test_each_feature_has_a_test() -> None:
    assert features() - {""} == set(SHOWN)


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    """Return the texts of the files with each test; a name may occur in several files."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE):
            found.setdefault(name, []).append(text)
    return found


@pytest.mark.parametrize("feature", SHOWN)
def test_the_file_of_that_test_names_the_feature(feature: str, files: dict[str, list[str]]) -> None:
    assert any(re.search(rf"(?<![\w-]){feature}(?![\w-])", text) for text in files[SHOWN[feature]])
