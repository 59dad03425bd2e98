# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what hosts send about the fabric, and require of each module that returns more than texts who tries its answers.

The fields come from the types that the verdict reads, and the modules from their documentation.
"""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import BandwidthResult, PingResult
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import module_document
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.check_matrix import bandwidth_verdict, ping_verdict
from ring_samples import cabled_plan

MODULES = Path(__file__).resolve().parents[3] / "plugins" / "modules"
TESTS = Path(__file__).resolve().parents[1]
PING: dict[str, Any] = {"host": "a", "peer": "b", "rail": "r", "vf_index": 0, "ok": True, "layer": "", "reason": ""}
PLAN = cabled_plan(2)
PAIR = sorted(PLAN["hosts"])
FAST: dict[str, Any] = {"pair": PAIR, "measured": {"r": 97.5}, "ok": True, "msg": "97.5 Gb/s"}
ODD: list[Any] = [None, 5, -(10**400), 1.5, float("nan"), float("inf"), b"a", [], {}, [[]], [None], {"a": []}]
ODD += ["a" * 10**6]


@pytest.mark.parametrize("field", sorted(PingResult.__required_keys__))
def test_a_ping_result_of_another_form_is_no_result(field: str) -> None:
    honest = {"a": [PING], "b": [PING | {"host": "b", "peer": "a"}]}
    assert ping_verdict(honest, "ab")["ok"]
    wrong = [value for value in ODD if not (field == "vf_index" and isinstance(value, int))]
    for value in [*wrong, *([] if field == "ok" else [True])]:
        told = ping_verdict(honest | {"a": [PING | {field: value}]}, "ab")
        assert not told["ok"]
        assert "a: gave no result" in told["msg"]
        assert len(told["msg"]) < 2000
    lacking = {key: value for key, value in PING.items() if key != field}
    assert not ping_verdict(honest | {"a": [lacking]}, "ab")["ok"]


@pytest.mark.parametrize("found", [*ODD, [5], [[]], [{}], {"results": [PING]}], ids=lambda found: ascii(found)[:20])
def test_what_is_no_list_of_results_is_none(found: Any) -> None:
    told = ping_verdict({"a": found, "b": [PING | {"host": "b", "peer": "a"}]}, "ab")
    assert told["ok"] is (found == [])
    assert len(told["msg"]) < 2000


def test_no_host_speaks_for_another() -> None:
    """A host that says that another one passes, or fails, does not change what is known of that one."""
    spoken = {"a": [PING, PING | {"host": "b", "peer": "a"}], "b": None}
    assert "a: gave no result\nb: gave no result" in ping_verdict(spoken, "ab")["msg"]
    assert not ping_verdict({"a": [PING | {"layer": "mtu"}], "b": []}, "ab")["ok"]


@pytest.mark.parametrize("field", sorted(BandwidthResult.__required_keys__))
def test_a_bandwidth_of_another_form_was_not_measured(field: str) -> None:
    assert bandwidth_verdict([FAST], PAIR, PLAN)["ok"]
    wrong = [value for value in ODD if not (field == "measured" and value == {})]
    for value in [*wrong, [PAIR[0], "z"], PAIR[:1], {"r": "1"}, {"r": True}, *([] if field == "ok" else [True])]:
        told = bandwidth_verdict([FAST | {field: value}], PAIR, PLAN)
        assert not told["ok"]
        assert f"{' and '.join(PAIR)}: not measured" in told["msg"]
        assert len(told["msg"]) < 2000


# Who tries the answers of a module: a test of hostile input, or why nothing reads them on another machine.
API = "what the API server answers: its texts that others write are tried in hostile/test_hostile_pods.py"
HERE = "read on the same host, or only shown"
OWN = "files of the machine that runs Ansible"
TRIED = {
    **dict.fromkeys(("fabric_bandwidth", "fabric_ping"), "hostile/test_hostile_node_results.py"),
    **dict.fromkeys(("cabling_info", "pf_info"), "hostile/test_hostile_node_inventory.py"),
    **dict.fromkeys(("model_share", "model_stock_info"), "hostile/test_hostile_node_listing.py"),
    "k3s_backup_info": "hostile/test_hostile_archive.py",
    **dict.fromkeys(("support_cluster_info", "support_info"), "hostile/test_hostile_secrets.py"),
    "preflight_info": "plugins/plugin_utils/_node/test_preflight_shapes.py",
    "node_update": "plugins/plugin_utils/_node/test_update_plan.py",
    "nccl_transport": "plugins/module_utils/_nccl/test_nccl_soundness.py",
}
NOT_TRIED = {
    **dict.fromkeys(("api_apply", "api_info", "existing_cluster_info", "k3s_upgrade_plan", "node_room_info"), API),
    **dict.fromkeys(("node_wait", "serving_group_info", "serving_verdict"), API),
    **dict.fromkeys(("fabric_health", "jit_cache", "k3s_leftovers", "k3s_service_info", "model_files_info"), HERE),
    **dict.fromkeys(("netplan_transaction", "nic_qos", "node_tuning", "roce_gid_info", "sriov_vf"), HERE),
    **dict.fromkeys(("host_files", "k3s_airgap_info"), OWN),
}


def returns_data(module: str) -> bool:
    described = module_document(module, "RETURN") or {}
    return any(each.get("type") in ("dict", "list") for each in described.values())


def test_each_module_that_returns_data_names_who_tries_it() -> None:
    run = {path.stem for path in MODULES.glob("*.py") if "def main(" in path.read_text(encoding="utf-8")}
    found = {name for name in run if returns_data(name)}
    assert found == {*TRIED, *NOT_TRIED}
    assert [name for name in TRIED.values() if not (TESTS / name).is_file()] == []
