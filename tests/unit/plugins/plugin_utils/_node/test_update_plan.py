# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what playbook update says of hosts before it changes one, also of hosts that answer what they want."""

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.update_plan import ActionModule
from preflight_samples import GOOD

RUNS, NEXT, KHO = "6.17.0-1014-nvidia", "6.17.0-1015-nvidia", "7.0.0-1019-nvidia"
FOUND: dict[str, Any] = {
    "kernel": RUNS,
    "boot_id": "1",
    "lines": ["6.17"],
    "kernels": {RUNS: "gnulinux-1"},
    "boot_free_mib": 900,
    "changes": [{"name": f"linux-image-{NEXT}", "before": "", "after": "6.17.0-1015.15"}],
    "state": {},
}
ACTION: Any = SimpleNamespace()
BASH = [{"name": "bash", "before": "5.1-1", "after": "5.2-1"}]


def image(kernel: str, *more: str) -> dict[str, Any]:
    """Return a host that may go to the line of a kernel, and would install it with further packages."""
    names = (f"linux-image-{kernel}", *more)
    changes = [{"name": name, "before": "", "after": "1-1"} for name in names]
    return {"changes": changes, "lines": [kernel[:3], "6.17"], "kernels": {RUNS: "gnulinux-1"}}


def pod(group: str, node: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"gb10.cluster/instance": group}}, "spec": {"nodeName": node}}


def planned(
    found: Any, facts: Any = ..., pods: Any = (), severities: Any = None, proof: str = "node"
) -> dict[str, Any]:
    """Return the plan for two hosts of which the second has nothing to update."""
    kernel = {"kernel": RUNS}
    facts = GOOD if facts is ... else facts
    variables = {
        "spark1": {"ansible_facts": {"gb10_preflight": facts and facts | kernel}, "update_read": {"found": found}},
        "spark2": {"ansible_facts": {"gb10_preflight": GOOD}, "update_read": {"found": FOUND | {"changes": []}}},
    }
    return acted(variables, pods, severities, proof)


def acted(variables: dict[str, Any], pods: Any = (), severities: Any = None, proof: str = "node") -> dict[str, Any]:
    options = {"pods": list(pods), "severities": severities or {}, "proof": proof}
    result: dict[str, Any] = ActionModule.act(
        ACTION, options, {"hostvars": variables, "ansible_play_hosts": list(variables)}
    )
    return result


STOP = "stop group gemma, which has ranks on spark1, spark3"
BOOT = f"spark1: install linux-image-{NEXT}; boot {NEXT} once instead of {RUNS}; check the host and the fabric"
START = "start group gemma, and prove its transport and its answers"
DEFAULT = f"; make {NEXT} the default"
AGAIN = "the kernel from before, group gemma starts again, and the run ends"
# The update has ended, or was interrupted before the reboot
ENDED = {"kernel_before": RUNS, "kernel_after": NEXT, "phase": "settled"}
OPEN = {"open": True, "phase": "installed", "begun": "2026-11-29T05:00:00Z", "kernel_before": RUNS}


@pytest.mark.parametrize(
    ("found", "proof", "lines", "begins"),
    [
        (
            {},
            "node",
            [
                f"{STOP}, after it has passed its proof",
                f"{BOOT}; {START}{DEFAULT}",
                f"leave group gemma running; if a check or a proof fails, that node boots {AGAIN}",
            ],
            True,
        ),
        (
            {},
            "group",
            [
                f"{STOP}, after it has passed its proof",
                f"{BOOT}{DEFAULT}",
                f"{START}; if that fails, each of spark1 boots {AGAIN}",
            ],
            True,
        ),
        (
            {"changes": BASH},
            "group",
            [
                f"{STOP}, after it has passed its proof",
                "spark1: install bash; check the host and the fabric",
                f"{START}; if that fails, group gemma starts again, and the run ends",
            ],
            True,
        ),
        # An interrupted run may have left the group with the kernel that breaks it.
        (
            {"state": OPEN},
            "group",
            [
                STOP,
                BOOT.replace(": ", ": go on with the update of 2026-11-29T05:00:00Z; ") + DEFAULT,
                f"{START}; if that fails, each of spark1 boots {AGAIN}",
            ],
            False,
        ),
        (
            {"kernel": NEXT, "back": True, "state": ENDED, "changes": []},
            "node",
            [STOP, f"spark1: boot {RUNS} again instead of {NEXT}; check the host and the fabric", START],
            False,
        ),
    ],
)
def test_a_plan_names_the_proofs_and_what_follows_them(
    found: Any, proof: str, lines: list[str], *, begins: bool
) -> None:
    pods = [pod("gemma", "spark1"), pod("gemma", "spark3"), pod("other", "spark2"), pod("", "spark1")]
    plan = planned(FOUND | found, pods=pods, proof=proof)
    assert plan["msg"].splitlines() == [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    assert [plan[name] for name in ("hosts", "groups", "failed", "begins")] == [["spark1"], ["gemma"], False, begins]


def test_only_a_node_with_a_rank_is_proved() -> None:
    assert planned(FOUND)["msg"] == f"1. {BOOT}{DEFAULT}"
    assert planned(FOUND | {"changes": []})["msg"] == "Nothing to update."
    two = {
        name: {"ansible_facts": {"gb10_preflight": GOOD | {"kernel": RUNS}}, "update_read": {"found": FOUND}}
        for name in ("spark1", "spark2")
    }
    two["spark1"]["k3s_node_name"] = "gpu1"
    proofs = [START in line for line in acted(two, [pod("gemma", "gpu1")])["msg"].splitlines()]
    assert proofs == [False, True, False, False]
    assert "each of spark1, spark2 boots" in acted(two, [pod("gemma", "gpu1")], proof="group")["msg"]


def test_an_interrupted_update_goes_on_and_a_driver_needs_a_reboot() -> None:
    state = {"open": True, "phase": "trial", "begun": "2026-11-29T05:00:00Z", "kernel_after": RUNS, "boot_id": "0"}
    line = planned(FOUND | {"changes": [], "state": state})["msg"]
    assert line.startswith(
        "1. spark1: go on with the update of 2026-11-29T05:00:00Z; check the host and the fabric; make"
    )
    driver = [{"name": "libnvidia-compute-580", "before": "580.95.05-1", "after": "580.126.09-1"}]
    assert "; reboot; check" in planned(FOUND | {"changes": driver})["msg"]


@pytest.mark.parametrize(
    ("found", "facts", "rule", "value"),
    [
        ({"boot_free_mib": 120}, {}, "update.boot.space", 120),
        ({"kernels": {}}, {}, "update.kernel.no_way_back", NEXT),
        ({"grub_writes": False}, {}, "update.kernel.not_once", NEXT),
        ({"changes": image(KHO)["changes"]}, {}, "update.kernel.line", KHO),
        ({"changes": [{"name": "nvidia-x", "before": "1", "after": ""}]}, {}, "update.packages.removed", "nvidia-x"),
        ({}, {"os": {"id": "fedora", "version": "43", "name": "Fedora 43"}}, "update.system.unsupported", "Fedora 43"),
        # A kernel of 7.x keeps memory from the HCA unless the package with its argument comes along.
        (image(KHO), {}, "update.known", KHO),
    ],
)  # fmt: skip
def test_an_update_that_cannot_end_well_is_refused(found: Any, facts: Any, rule: str, value: Any) -> None:
    plan = planned(FOUND | found, GOOD | facts)
    assert [(one["rule"], one["value"], one["where"]) for one in plan["findings"]] == [(rule, value, "spark1")]
    assert (plan["failed"], plan["msg"]) == (True, "The update was refused; nothing was changed.")


@pytest.mark.parametrize(
    ("found", "facts", "severities"),
    [
        (image(KHO, "nvidia-spark-grub-kho"), {}, {}),
        (image(KHO), {"command_line": "quiet kho=off"}, {}),
        (image(KHO), {}, {"preflight.kernel.kho_argument": "info"}),
        # What the host has already is no reason to keep it from its update.
        ({"changes": BASH}, {"gpus": []}, {}),
        ({"changes": [{"name": "nano", "before": "7-1", "after": ""}]}, {}, {}),
    ],
)
def test_an_update_without_a_new_problem_is_not_refused(found: Any, facts: Any, severities: Any) -> None:
    assert not planned(FOUND | found, GOOD | facts, severities=severities)["failed"]


def test_holds_and_a_kernel_that_failed_are_said() -> None:
    state = {"phase": "returned", "kernel_before": RUNS, "kernel_after": NEXT}
    plan = planned(FOUND | {"hold": ["linux-nvidia-hwe-24.04"], "changes": BASH, "state": state})
    assert [one["rule"] for one in plan["findings"]] == ["update.kernel.held", "update.kernel.returned"]
    assert "1. spark1: hold linux-nvidia-hwe-24.04; install bash; check the host and the fabric" in plan["msg"]


def test_a_kernel_that_failed_on_one_node_is_not_tried_on_the_others() -> None:
    variables = {
        name: {"ansible_facts": {"gb10_preflight": GOOD}, "update_read": {"found": FOUND | {"state": state}}}
        for name, state in (("a", {"phase": "returned", "kernel_before": RUNS, "kernel_after": NEXT}), ("b", {}))
    }
    found = [(one["rule"], one["where"]) for one in acted(variables)["findings"]]
    assert found == [("update.kernel.failed", "b"), ("update.kernel.returned", "a")]


def test_one_group_is_updated_at_a_time() -> None:
    plan = planned(FOUND, pods=[pod("gemma", "spark1"), pod("qwen", "spark1")])
    assert [(one["rule"], one["value"]) for one in plan["findings"]] == [("update.group.several", "gemma, qwen")]


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        FOUND | {"kernel": "{{ lookup('pipe', 'id') }}"},
        FOUND | {"kernel": 7},
        FOUND | {"boot_free_mib": "much"},
        FOUND | {"changes": [{"name": "a b\x1b[2J", "before": "", "after": "1"}]},
        FOUND | {"changes": [{"name": "bash"}]},
        FOUND | {"changes": "bash"},
        FOUND | {"hold": ["$(id)"]},
        FOUND | {"state": {"begun": "now\nerror: all is well"}},
        FOUND | {"state": 7},
    ],
)
def test_what_has_another_form_is_refused_and_not_shown(found: Any) -> None:
    plan = planned(found)
    assert [(one["rule"], one["value"]) for one in plan["findings"]] == [("update.facts.odd", None)]
    assert [one["rule"] for one in planned(FOUND, None)["findings"]] == ["update.facts.odd"]
