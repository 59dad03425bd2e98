# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the first play of site with every example inventory, unchanged and with mistakes. No host is contacted."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import role_docs
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "inventory").iterdir() if path.name != "lab")
SHOWN = "{{ [serving_plan_profile, serving_plan_transport, serving_plan_vf_index | string] | join(' ') }}"


def play(playbook: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ansible("ansible-playbook", *arguments, playbook)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_planned_as_it_stands(example: str) -> None:
    done = play(ROOT / "playbooks" / "plan.yml", "-i", f"inventory/{example}", "-e", "gb10_kubeconfig=/nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Plan the group" in done.stdout
    assert len(re.findall("Group .* is planned", done.stdout)) == 1
    assert len(re.findall(r"\d hosts?, \d rails, \d+ VFs, \d+ NADs", done.stdout)) == 1
    assert "10.100." in done.stdout or example != "2x-gb10-direct"


def test_a_run_of_site_shows_no_plan_unless_the_inventory_says_so() -> None:
    part = ("-e", json.dumps({"stage_of_site": True}))
    done = play(ROOT / "playbooks" / "plan.yml", "-i", "inventory/2x-gb10-direct", *part)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10.100." not in done.stdout


def test_numbers_are_integers_to_a_preset_hosts_keep_facts_of_their_own_and_the_plan_is_shown(tmp_path: Path) -> None:
    later = {
        "hosts": "gb10_nodes",
        "gather_facts": False,
        "tasks": [
            {"ansible.builtin.set_fact": {"address": "{{ inventory_hostname }}", "cacheable": True}},
            {"ansible.builtin.assert": {"that": "ansible_facts['address'] == inventory_hostname"}},
        ],
    }
    plan = {"ansible.builtin.import_playbook": str(ROOT / "playbooks" / "plan.yml")}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([plan, later]), encoding="utf-8")
    (tmp_path / "mine.yml").write_text(yaml.safe_dump({"all": {"vars": {"serving_plan_show": True}}}))
    wanted = {"serving_plan_overrides": {"topology": {"nodes": 4, "tp": 4}}, "stage_of_site": True}
    path = tmp_path / "wanted.yml"
    path.write_text(yaml.safe_dump(wanted), encoding="utf-8")
    words = ("-i", "inventory/4x-gb10-switch", "-i", str(tmp_path / "mine.yml"), "-e", f"@{path}")
    done = play(tmp_path / "book.yml", *words, "-e", "gb10_kubeconfig=/nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10.100." in done.stdout


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the keys of the errors in the output."""
    return sorted(re.findall(r"^error: (?:[\w -/]+: )?([\w-]+)(?: = .*?)?: ", done.stdout + done.stderr, re.MULTILINE))


@pytest.mark.parametrize("playbook", ["plan", "serve", "bench", "verify", "latency", "compare_transports"])
def test_playbooks_that_need_both_plans_check_both(playbook: str) -> None:
    (check,) = [
        play for play in _plays(f"{playbook}.yml") if play.get("ansible.builtin.import_playbook") == "check.yml"
    ]
    assert check["vars"]["needed_plans"] == ["fabric", "serving"]


def test_mistakes_in_variables_fabric_profile_and_settings_are_told_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_STRATEGY", "free")
    wrong = {"gb10_fabric_mtu": 900, "preset": "thruput", "gb10_fabirc_qos": True, "gb10_model_dir": "/srv"}
    wrong |= {"k3s_version": "latest", "gb10_fabric_qos": "ture"}
    done = play(ROOT / "playbooks" / "site.yml", "-i", "inventory/4x-gb10-switch", "-e", json.dumps(wrong))
    assert errors(done) == sorted([*wrong, "strategy"])
    told = ["v1.36.4+k3s1", "Write true or false", "Did you mean gb10_fabric_qos?"]
    assert [words for words in told if words not in done.stdout + done.stderr] == []
    assert done.returncode == 2
    assert "Read the ports" not in done.stdout


def test_a_sweep_that_does_not_exist_is_named_before_a_host_is_contacted() -> None:
    done = play(ROOT / "playbooks" / "sweep.yml", "-i", "inventory/4x-gb10-switch", "-e", "sweep=nothere")
    assert done.returncode == 2
    assert "sweep = 'nothere': this file does not exist" in done.stdout + done.stderr
    assert "Read the ports" not in done.stdout


@pytest.mark.parametrize(
    ("playbook", "told"), [("reset", "k3s_reset_confirm=yes"), ("restore", "k3s_restore_confirm=yes")]
)
def test_a_confirmation_is_required_before_a_host_is_contacted(playbook: str, told: str) -> None:
    done = play(ROOT / "playbooks" / f"{playbook}.yml", "-i", "inventory/4x-gb10-switch")
    assert done.returncode == 2
    assert told in " ".join((done.stdout + done.stderr).split())
    assert "Gathering Facts" not in done.stdout


@pytest.fixture
def refusing(tmp_path: Path) -> str:
    """Values with which ssh refuses every host, because it does not know their keys, and notes that it was called."""
    ssh = tmp_path / "ssh"
    note = f"touch '{tmp_path}/called'"
    ssh.write_text(f"#!/bin/sh\n{note}\necho 'Host key verification failed.' >&2\nexit 255\n", encoding="utf-8")
    ssh.chmod(0o755)
    return json.dumps({"gb10_kubeconfig": "/nonexistent", "ansible_ssh_executable": str(ssh)})


def test_the_tag_plan_alone_contacts_no_host_and_shows_the_plan(refusing: str, tmp_path: Path) -> None:
    done = play(ROOT / "playbooks" / "site.yml", "-i", "inventory/2x-gb10-direct", "--tags", "plan", "-e", refusing)
    assert not (tmp_path / "called").exists()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Group qwen3-8-flash-next is planned") == 1
    assert done.stdout.count("2 hosts, 2 rails, 8 VFs, 4 NADs") == 1
    assert "10.100." in done.stdout


@pytest.mark.parametrize(("playbook", "tags"), [("site", ["--tags", "plan,preflight"]), ("models", [])])
def test_hosts_that_refuse_the_login_are_reported_together_with_the_remedy(
    playbook: str, tags: list[str], refusing: str, tmp_path: Path
) -> None:
    done = play(ROOT / "playbooks" / f"{playbook}.yml", "-i", "inventory/4x-gb10-switch", *tags, "-e", refusing)
    assert (tmp_path / "called").exists()
    assert done.stdout.count("Group gemma-4-31b-it is planned") == (playbook == "site")
    assert done.returncode in {2, 4}
    told = " ".join(done.stdout.split()).split("error: ")[1:]
    assert len(told) == 4
    for number, finding in enumerate(told, 1):
        assert f"spark{number}: ssh = 'Host key verification failed.'" in finding
        assert f"ssh nvidia@192.168.10.1{number}" in finding
    contacted = "UNREACHABLE" in done.stdout or "Read the ports" in done.stdout
    assert contacted is (playbook != "site")


def test_playbooks_of_a_checkout_run_from_any_directory_with_the_settings_of_its_owner(tmp_path: Path) -> None:
    settings = "[defaults]\nforks = 1\ngathering = explicit\nstdout_callback = ansible.posix.json\n"
    (tmp_path / "ansible.cfg").write_text(settings, encoding="utf-8")
    inventory = tmp_path / "my inventory"
    shutil.copytree(ROOT / "inventory" / "2x-gb10-direct", inventory)
    words = ["-i", inventory, ROOT / "playbooks" / "plan.yml", "--tags", "plan"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = ansible("ansible-playbook", *words, "-e", "gb10_kubeconfig=/nonexistent", cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["stats"]["spark1"]["failures"] == 0
    assert "Group qwen3-8-flash-next is planned." in done.stderr


@pytest.mark.parametrize("playbook", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_for_hosts_begins_with_the_check(playbook: Path) -> None:
    text = playbook.read_text(encoding="utf-8")
    # Playbook planned is a part of others, which have begun with the check.
    if "hosts: gb10_" in text and playbook.stem != "planned":
        # Playbook plan begins with the check itself.
        first = re.search(r"import_playbook: (check|plan)\.yml", text)
        assert first and first.start() < text.index("hosts: ")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([], ["gemma-4-31b-it roce 0", "glm-4.7 roce 0"]),
        (["-e", "profile=qwen3.5-397b", "-e", "vf_index=1"], ["qwen3.5-397b roce 1"]),
        (["-e", "serving_plan_profile=x", "-e", "transport=socket"], ["x socket 0"]),
    ],
)
def test_the_command_line_wins_over_the_inventory(tmp_path: Path, extra: list[str], expected: list[str]) -> None:
    shutil.copytree(ROOT / "playbooks" / "vars", tmp_path / "vars")
    hosts = {"h": {"hosts": {"untold": {}, "told": {"serving_plan_profile": "glm-4.7"}}}}
    (tmp_path / "hosts.yml").write_text(json.dumps(hosts), encoding="utf-8")
    tasks = [{"ansible.builtin.debug": {"msg": SHOWN}}]
    plays = [{"hosts": "h", "gather_facts": False, "vars_files": ["vars/command_line.yml"], "tasks": tasks}]
    (tmp_path / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    done = play(tmp_path / "play.yml", "-i", str(tmp_path / "hosts.yml"), *extra)
    shown = re.findall("msg: (.*)", done.stdout)
    assert len(shown) == 2, done.stdout + done.stderr
    assert sorted(set(shown)) == expected


def test_the_command_line_falls_back_to_the_defaults_of_the_roles() -> None:
    values = role_docs.defaults("serving_plan") | role_docs.defaults("bench")
    for name, template in yaml.safe_load(
        (ROOT / "playbooks/vars/command_line.yml").read_text(encoding="utf-8")
    ).items():
        assert template.endswith(f" | default({values[name]!r}) }}}}"), name


def test_the_readme_lists_the_tag_of_every_stage() -> None:
    stages = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text(encoding="utf-8"))
    tags = {tag for stage in stages for tag in stage.get("tags", [])}
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| tag | runs |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == tags | {"plan"}


def test_a_fact_cache_does_not_stand_for_the_hosts_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSIBLE_CACHE_PLUGIN", "jsonfile")
    monkeypatch.setenv("ANSIBLE_CACHE_PLUGIN_CONNECTION", str(tmp_path / "facts"))
    book = tmp_path / "book.yml"
    book.write_text(
        yaml.safe_dump([{"hosts": "gb10_nodes", "gather_facts": False, "roles": ["gb10.cluster.fabric_plan"]}])
    )
    local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    for _run in range(2):
        said = play(book, "-i", "inventory/1x-b300", "-e", json.dumps(local)).stdout
        (ports,) = [text for text in said.split("TASK [") if "Read the ports" in text]
        assert "ok: [" in ports
    assert list((tmp_path / "facts").iterdir())


def test_the_playbook_that_verifies_decides_by_this_run_which_plans_are_made() -> None:
    (play_of_it,) = [one for one in yaml.safe_load((ROOT / "playbooks/verify.yml").read_text()) if "tasks" in one]
    group = play_of_it["tasks"][0]
    assert group["ansible.builtin.include_role"]["name"] == "gb10.cluster.serving_plan"
    assert group["when"] == "serving_plan_result is not defined"
    (fabric,) = yaml.safe_load((ROOT / "playbooks/planned.yml").read_text())
    end, *_others, plan = fabric["tasks"]
    assert end["ansible.builtin.meta"] == "end_play"
    assert end["when"] == "fabric_plan_result is defined"
    assert plan["ansible.builtin.include_role"]["name"] == "gb10.cluster.fabric_plan"


def test_the_stages_of_site_leave_the_check_of_values_to_their_first_play() -> None:
    stages = [stage["ansible.builtin.import_playbook"] for stage in _plays("site.yml")]
    assert len(stages) == 7
    roles = set()
    for stage in stages:
        first, *others = _plays(stage)
        assert first["ansible.builtin.import_playbook"] == "check.yml", stage
        for play_of_it in others:
            assert "roles" not in play_of_it, stage
            for task in play_of_it.get("tasks", []):
                if role := task.get("ansible.builtin.import_role"):
                    name = role["name"].rpartition(".")[2]
                    specs = yaml.safe_load(
                        (ROOT / "roles" / name / "meta/argument_specs.yml").read_text(encoding="utf-8")
                    )
                    checked = role.get("tasks_from", "main") in specs["argument_specs"]
                    assert role.get("rolespec_validate", True) is not checked, (stage, task["name"])
                    roles |= {name}
    assert {"preflight", "netplan", "node_tuning", "k3s", "multus", "sglang", "nccl_verify", "summary"} < roles
    # A second run also fetches models, which role sglang includes on every host.
    files = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    quick = {path.name for path in files if "rolespec_validate" in path.read_text(encoding="utf-8")}
    assert quick <= {*stages, "planned.yml", "models.yml"}


def _plays(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((ROOT / "playbooks" / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("value", "lost", "told"),
    [
        ("{{ ansible_facts.size }}", [], "sglang_wait_timeout = 'large'"),
        ("{{ serving_plan_profile }}", [], "sglang_wait_timeout = 'qwen3.8-flash-next'"),
        ("{{ ansible_facts.size | length }}", [], ""),
        ("0", ["spark2"], "spark2: an error ended an earlier play"),
    ],
)
def test_a_stage_checks_values_that_were_unknown_before_and_runs_with_no_host_lost(
    value: str, lost: list[str], told: str, tmp_path: Path
) -> None:
    check = {"ansible.builtin.import_playbook": str(ROOT / "playbooks" / "check.yml")}
    fact = {"ansible.builtin.set_fact": {"size": "large", "cacheable": True}}
    failing = {"ansible.builtin.fail": {"msg": "no"}, "when": f"inventory_hostname in {lost}"}
    stage = {"hosts": "gb10_nodes", "gather_facts": False, "tasks": [fact, failing]}
    work = {"name": "Work of a later stage", "ansible.builtin.assert": {"that": "true"}}
    book = [check, stage, check, stage | {"tasks": [work]}]
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book), encoding="utf-8")
    given = tmp_path / "group_vars" / "gb10_nodes.yml"
    given.parent.mkdir()
    given.write_text(yaml.safe_dump({"sglang_wait_timeout": value}), encoding="utf-8")
    shutil.copy(ROOT / "inventory/2x-gb10-direct/hosts.yml", tmp_path)
    shutil.copy(ROOT / "inventory/2x-gb10-direct/group_vars/gb10_cluster.yml", given.parent)
    done = play(tmp_path / "book.yml", "-i", str(tmp_path / "hosts.yml"))
    assert (done.returncode != 0) is bool(told), done.stdout + done.stderr
    assert ("Work of a later stage" in done.stdout) is not bool(told)
    assert told in " ".join(done.stdout.split())
