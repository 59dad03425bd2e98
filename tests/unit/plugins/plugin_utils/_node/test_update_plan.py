# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what playbook update says of hosts before it changes one, also of hosts that answer what they want."""

from types import SimpleNamespace
from typing import Any

import stored
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


def changes(*names: str, before: str = "1-1", after: str = "2-1") -> dict[str, Any]:
    return {"changes": [{"name": name, "before": before, "after": after} for name in names]}


def image(kernel: str, *more: str) -> dict[str, Any]:
    """Return a host that may go to the line of a kernel, and would install it with further packages."""
    new = changes(f"linux-image-{kernel}", *more, before="", after="1-1")
    return new | {"lines": [kernel[:3], "6.17"], "kernels": {RUNS: "gnulinux-1"}}


def pod(group: str, node: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"gb10.cluster/instance": group}}, "spec": {"nodeName": node}}


PODS = [pod("gemma", "spark1"), pod("gemma", "spark3"), pod("other", "spark2"), pod("", "spark1")]
BASH, NONE = changes("bash"), changes()
OPEN = {"open": True, "phase": "installed", "begun": "2026-11-29T05:00:00Z", "kernel_before": RUNS}
TRIAL = OPEN | {"phase": "trial", "kernel_before": "", "kernel_after": RUNS, "boot_id": "0"}
ENDED = {"kernel_before": RUNS, "kernel_after": NEXT, "phase": "settled"}
BACK = {"kernel": NEXT, "back": True, "state": ENDED, **NONE}
RETURNED = {"phase": "returned", "kernel_before": RUNS, "kernel_after": NEXT}
FEDORA = {"os": {"id": "fedora", "version": "43", "name": "Fedora 43"}}
RULE = "preflight.kernel.kho_argument"
# {case: what the first of two hosts found, and what else differs}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"{name}, proof of each {proof}": {"found": found, "proof": proof, "pods": PODS}
        for name, found in {"a new kernel": {}, "a package": BASH, "interrupted": {"state": OPEN}, "back": BACK}.items()
        for proof in ("node", "group")
    },
    "no rank": {},
    "nothing to update": {"found": NONE},
    "interrupted at the trial": {"found": {**NONE, "state": TRIAL}},
    "a driver": {"found": changes("libnvidia-compute-580", before="580.95.05-1", after="580.126.09-1")},
    "many packages": {"found": changes(*(f"package{number}" for number in range(8)))},
    "a full /boot": {"found": {"boot_free_mib": 120}},
    "a /boot with just enough": {"found": {"boot_free_mib": 400}},
    "no way back": {"found": {"kernels": {}}},
    "a kernel that GRUB can't boot once": {"found": {"grub_writes": False}},
    "a kernel of another line": {"found": {"changes": image(KHO)["changes"]}},
    "a driver that goes": {"found": changes("nvidia-x", after="")},
    "another system": {"facts": FEDORA},
    # A kernel of 7.x keeps memory from the HCA unless the package with its argument comes along.
    "a known problem": {"found": image(KHO)},
    "a known problem with its remedy": {"found": image(KHO, "nvidia-spark-grub-kho")},
    "a known problem that was mended": {"found": image(KHO), "facts": {"command_line": "quiet kho=off"}},
    "a known problem that the owner accepts": {"found": image(KHO), "severities": {RULE: "info"}},
    # What the host has already is no reason to keep it from its update.
    "problems that the host has already": {"found": BASH, "facts": {"gpus": [], "cma_kib": 0, "cma_free_kib": 9}},
    "another package that goes": {"found": changes("nano", after="")},
    "held, and a kernel that failed": {"found": {"hold": ["linux-nvidia-hwe-24.04"], **BASH, "state": RETURNED}},
    "a kernel that failed, and a package": {"found": {"state": ENDED, **BASH}},
    "two groups": {"pods": [pod("gemma", "spark1"), pod("qwen", "spark1")]},
}
ODD: list[Any] = [
    None,
    [],
    {},
    FOUND | {"kernel": "{{ lookup('pipe', 'id') }}"},
    FOUND | {"kernel": 7},
    FOUND | {"boot_free_mib": "much"},
    FOUND | changes("a b\x1b[2J"),
    FOUND | {"changes": [{"name": "bash"}]},
    FOUND | {"changes": "bash"},
    FOUND | {"hold": ["$(id)"]},
    FOUND | {"state": {"begun": "now\nerror: all is well"}},
    FOUND | {"state": 7},
]


def host(found: Any, facts: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {
        "ansible_facts": {"gb10_preflight": facts and facts | {"kernel": RUNS}},
        "update_read": {"found": found},
        **more,
    }


def acted(variables: dict[str, Any], pods: Any = (), severities: Any = None, proof: str = "node") -> dict[str, Any]:
    options = {"pods": list(pods), "severities": severities or {}, "proof": proof}
    result: dict[str, Any] = ActionModule.act(
        ACTION, options, {"hostvars": variables, "ansible_play_hosts": list(variables)}
    )
    return result


def told(plan: dict[str, Any]) -> list[str]:
    findings = [f"{one['severity']} {one['rule']} = {one['value']} on {one['where']}" for one in plan["findings"]]
    ends = [f"{name}: {plan[name]}" for name in ("hosts", "groups", "failed", "begins")]
    return [*plan["msg"].splitlines(), *findings, ", ".join(ends)]


def test_the_plan_of_an_update_is_as_stored() -> None:
    idle = host(FOUND | NONE, GOOD)
    plans = {}
    for name, case in CASES.items():
        first = host(FOUND | case.get("found", {}), GOOD | case.get("facts", {}))
        options = {key: case[key] for key in ("pods", "severities", "proof") if key in case}
        plans[name] = told(acted({"spark1": first, "spark2": idle}, **options))
    two = {"spark1": host(FOUND, GOOD, k3s_node_name="gpu1"), "spark2": host(FOUND, GOOD)}
    for proof in ("node", "group"):
        plans[f"two hosts, of which one has a rank: {proof}"] = told(acted(two, [pod("gemma", "gpu1")], proof=proof))
    failed = [("a", host(FOUND | {"state": RETURNED}, GOOD)), ("b", host(FOUND, GOOD))]
    for order in (failed, failed[::-1]):
        plans[f"a kernel that failed on a, of {[name for name, _host in order]}"] = told(acted(dict(order)))
    stored.compare("update_plans", plans)


def test_what_has_another_form_is_refused_and_not_shown() -> None:
    for found, facts in [*((odd, GOOD) for odd in ODD), (FOUND, None)]:
        plan = acted({"spark1": host(found, facts)})
        assert [(one["rule"], one["value"]) for one in plan["findings"]] == [("update.facts.odd", None)], found
