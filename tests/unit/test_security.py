# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Require a test for each sentence of SECURITY.md about a deployment, and test what no other test shows.

A sentence that changes has to be compared with its tests again.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SHOWN: dict[str, tuple[str, ...]] = {
    "The default RDMA mode runs the model's pods **privileged**.": ("test_security_of_each_mode", "test_defaults"),
    "`gb10_rdma_mode: restricted` needs no privilege; the README of role device_plugins compares the modes.": (
        "test_security_of_each_mode",
        "test_pod_security_admits_a_mode_where_it_should",
    ),
    "In mode `ipc_lock` the server is root in its container, with the capability `IPC_LOCK`, without `NET_RAW`, and "
    "with the runtime's seccomp profile.": ("test_security_of_each_mode",),
    "Mode `none` has this profile and the container's ordinary capabilities.": ("test_security_of_each_mode",),
    "A pod joins the fabric by naming a network of its own namespace; Multus refuses networks of other namespaces, and "
    "an admission policy refuses pods with the annotation `v1.multus-cni.io/default-network`, for which Multus does "
    "not do it.": (
        "test_multus_isolates_namespaces_unless_told_otherwise",
        "test_a_pod_of_another_namespace_joins_no_network",
        "test_a_model_gets_no_namespace_of_kubernetes_itself_where_this_collection_runs_it",
    ),
    "While models are fetched, each node serves their files on TCP port 7420 of its fabric addresses, to the group's "
    "other nodes only, and only with the token of that transfer.": (
        "test_another_address_gets_no_answer",
        "test_another_token_is_refused",
    ),
    "The token is neither in arguments nor in logs, and crosses the fabric unencrypted.": (
        "test_a_refusal_has_its_reason_and_not_the_token",
    ),
    "Nothing listens afterwards.": ("test_only_its_own_address_listens_and_nothing_after_the_end",),
    "The head's server has no key of its own.": ("test_a_secret_in_a_profile_is_refused",),
    "A door in front of it (`front_door.py`) answers clients only with the routes that generate and report, such as "
    "`/v1`, `/generate` and `/server_info`, and only at the pod's address in the cluster.": (
        "test_a_client_gets_what_generates_and_the_pod_itself_everything",
        "test_a_client_can_use_the_server_but_not_administer_it_and_a_vf_answers_nothing",
    ),
    "Routes that load weights, write profiles or empty caches answer only processes of the pod, so using them needs "
    "the right to run a command in the pod or to forward its port.": (
        "test_a_client_gets_what_generates_and_the_pod_itself_everything",
    ),
    "They do not answer GET, because the server itself fetches addresses of images that clients name.": (
        "test_a_client_gets_what_generates_and_the_pod_itself_everything",
    ),
    "The pod's VFs, to which no NetworkPolicy applies, answer with status 403.": (
        "test_a_client_gets_what_generates_and_the_pod_itself_everything",
        "test_a_client_can_use_the_server_but_not_administer_it_and_a_vf_answers_nothing",
    ),
    "`sglang_open_routes: true` takes the door away.": ("test_defaults", "test_the_plan_names_known_holes_in_one_line"),
    "An Ingress publishes only `/v1`, `/generate` and the paths of health.": (
        "test_an_ingress_publishes_what_clients_need_and_no_route_that_administers_the_server",
        "test_no_route_of_any_release_that_administers_passes",
    ),
    "The plan names the known holes of the profile's SGLang in one line, and warns of the open ones.": (
        "test_the_plan_names_known_holes_in_one_line",
        "test_a_closed_hole_makes_no_finding",
    ),
    "It also warns if a server runs code of a model's repository (`trust_remote_code`) that no commit pins.": (
        "test_code_of_a_repository_that_can_change_is_warned_of",
        "test_profiles_that_trust_a_repository_s_code_pin_it",
    ),
    "The gateway's own routes, which add workers or load programs, answer nobody.": (
        "test_no_client_administers_the_gateway",
    ),
    "Without `gateway_api_key` anybody who can reach the Service can use the model.": (
        "test_a_client_gets_what_generates_and_the_pod_itself_everything",
    ),
    "The Service stays inside the cluster unless you change it.": ("test_defaults",),
    "The container `transport` of each rank has a token that may read the pods of its group, patch the status of its "
    "own pod and create events in the namespace.": (
        "test_a_sidecar_may_write_the_status_of_its_own_pod_and_events_and_nothing_else",
    ),
    "The server's container has no token.": ("test_no_container_has_a_token_that_kubernetes_mounts_by_itself",),
    '`sglang_transport_gate: "off"` together with `sglang_memory_guard: false` removes this token from all ranks, '
    "unless `sglang_answers` is `enforce`.": ("test_the_gate_can_only_warn_or_be_off",),
    "Files whose name contains `vault` are neither committed (`.gitignore`) nor packaged (`galaxy.yml`).": (
        "test_files_of_a_vault_and_results_are_neither_committed_nor_packaged",
    ),
    "`results/backups/` contains the cluster's keys.": ("test_a_backup_is_told_from_a_part_of_one",),
    "The files have mode 0600 and are never packaged.": (
        "test_backups_are_readable_by_their_owner_only",
        "test_files_of_a_vault_and_results_are_neither_committed_nor_packaged",
        "test_the_artifact_has_all_that_ships_and_nothing_else",
    ),
    "Logs and reports are written to `results/`.": ("test_the_comparison_of_transports_is_beside_the_proofs",),
}
NOT_OURS = {
    "A privileged pod is root on its node: it can read every token of every pod there.": "so does Kubernetes define it",
    "Fabric traffic (RoCE) is neither encrypted nor authenticated.": "the protocol has neither",
    "In an existing cluster its owner decides whether Multus isolates namespaces.": "another owner's Multus",
    "Pod traffic between nodes, such as requests and answers, is clear text unless the cluster's network encrypts it."
    "": "flannel, as K3s starts it",
    "NCCL logs there contain names of hosts, addresses and devices.": "a warning; NCCL decides what it prints",
}
ADVICE = {
    "Use a separate network for the fabric.",
    "Keep tokens and keys in an Ansible vault.",
    "Read them before you publish them.",
}


def sentences() -> list[str]:
    """Return the sentences of the list of properties."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    items = re.split(r"^- ", text.partition("## Security properties")[2], flags=re.MULTILINE)[1:]
    return [part for item in items for part in re.split(r"(?<=[.])\s+(?=[A-Z`])", " ".join(item.split()))]


def test_each_sentence_has_a_test_or_says_something_that_is_not_ours() -> None:
    told = sentences()
    assert len(told) == len(set(told))
    assert set(told) == {*SHOWN, *NOT_OURS, *ADVICE}
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"^(?:async )?def (test_\w+)", written, flags=re.MULTILINE))
    assert {name for names in SHOWN.values() for name in names} - tests == set()


@pytest.mark.parametrize(
    ("role", "option", "value"),
    [
        ("device_plugins", "device_plugins_rdma_mode", "privileged"),
        ("serving_plan", "serving_plan_rdma_mode", "privileged"),
        ("sglang", "sglang_open_routes", "False"),
        ("sglang", "sglang_service_type", "ClusterIP"),
    ],
)
def test_defaults(role: str, option: str, value: str) -> None:
    """A default may name a shared variable before its value."""
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    assert value in str(defaults[option])


@pytest.mark.parametrize("name", ["group_vars/all/vault.yml", "my-vault-file", "results/backups/server.tar.gz"])
def test_files_of_a_vault_and_results_are_neither_committed_nor_packaged(name: str) -> None:
    ignored = subprocess.run(["git", "check-ignore", "--no-index", "-q", name], cwd=ROOT, check=False)
    assert ignored.returncode == 0
    manifest = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["manifest"]
    assert manifest["omit_default_directives"] is True
    *_included, excluded = [line for line in manifest["directives"] if "vault" in line or "results" in line]
    assert excluded.startswith("global-exclude *vault*")
    assert not any("results" in line for line in manifest["directives"])


def test_backups_are_readable_by_their_owner_only() -> None:
    """A task that writes an archive says its mode."""
    text = (ROOT / "roles" / "k3s" / "tasks" / "backup.yml").read_text(encoding="utf-8")
    assert text.count('mode: "0600"') >= 1
    assert not set(re.findall(r'mode: "?(\d+)', text)) - {"0600", "0700"}


def tasks(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all tasks of a file, also those in blocks."""
    for task in node or []:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part))


def test_no_task_shows_what_it_writes_into_a_secret() -> None:
    files = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml")]
    found = [task for path in files for task in tasks(yaml.safe_load(path.read_text(encoding="utf-8")))]
    writing = [task for task in found if "stringData" in str({key: task[key] for key in task if key != "block"})]
    assert len(writing) == 3  # the hub's token, the gateway's key, and passwords of the monitoring
    assert [task["name"] for task in writing if task.get("no_log") is not True] == []
