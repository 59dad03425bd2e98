#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the fabric's planning and rendering for 4, 64 and 256 hosts, and count the tasks of a run that changes nothing.

    benchmarks/fabric_plan.py [--json] [--repeat N] [--inventory INVENTORY]

Each size plans two rails with eight VFs a PF, then renders every host's netplan and sysctl files and all
NetworkAttachmentDefinitions. The best of N runs counts. Exits 1 when 256 hosts cost more than linearly: more than
1.5 times the 64 hosts' time a host.

With an inventory whose fabric is set up (in a lab: below `lab/labctl run --`) it plays playbooks/fabric.yml once
more and counts what each host sees. Exits 1 for 15 tasks and more, or any change.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._netplan.interfaces import (
    interfaces,
    render_netplan,
    render_sysctl,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.attachments import nads
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric

FABRIC = Path(__file__).resolve().parents[1] / "playbooks" / "fabric.yml"
RECAP = re.compile(
    r"^(?P<host>\S+) +: ok=(?P<ok>\d+) +changed=(?P<changed>\d+) .*skipped=(?P<skipped>\d+)", re.MULTILINE
)
FEW = 15  # tasks: each costs a round trip to every host
SIZES = (4, 64, 256)
TOLERATED = 1.5  # against noise of a busy machine; quadratic growth from 64 to 256 would be 4
PFS = ("enp1s0f0np0", "enP2p1s0f0np0")
VFS = 8


def inventory(hosts: int) -> dict[str, dict[str, Any]]:
    """Return the variables of a fabric of so many hosts; a /23 a VF index has room for 510."""
    group = {
        "gb10_fabric_rails": [
            {"name": f"rail{index}", "pf": pf, "network": f"10.{100 + index}.0.0/16"} for index, pf in enumerate(PFS)
        ],
        "gb10_fabric_subnet_prefix": 23,
        "gb10_management_networks": ["192.168.0.0/16"],
        "gb10_pf_totalvfs": dict.fromkeys(PFS, VFS),
        "gb10_pf_max_mtu": dict.fromkeys(PFS, 9978),
    }
    return {f"spark{number}": {**group, "gb10_node_id": number} for number in range(1, hosts + 1)}


def render(plan: dict[str, Any]) -> int:
    """Render everything that is made from a plan; return the number of bytes."""
    size = len(json.dumps(nads(plan, "gb10-serving")))
    for host in plan["hosts"].values():
        desired = interfaces(host["pfs"], host["vfs"], plan["mtu"])
        size += len(render_netplan(desired)) + len(render_sysctl(desired))
    return size


def timed(function: Callable[[], Any], repeat: int) -> float:
    """Return the processor seconds of the fastest of ``repeat`` runs; other processes don't count."""
    best = float("inf")
    for _run in range(repeat):
        started = time.process_time()
        function()
        best = min(best, time.process_time() - started)
    return best


def measure(hosts: int, repeat: int) -> dict[str, Any]:
    """Return ``{hosts, vfs, plan_s, render_s, per_host_ms}`` of one size."""
    variables = inventory(hosts)
    planned, findings = plan_fabric(variables)
    if has_errors(findings):
        raise SystemExit("\n".join(str(finding) for finding in findings))
    plan = planned.as_dict()

    def plan_again() -> None:
        plan_fabric(variables)[0].as_dict()

    plan_s = timed(plan_again, repeat)
    render_s = timed(lambda: render(plan), repeat)
    return {
        "hosts": hosts,
        "vfs": sum(len(host["vfs"]) for host in plan["hosts"].values()),
        "plan_s": plan_s,
        "render_s": render_s,
        "per_host_ms": 1000 * (plan_s + render_s) / hosts,
    }


def play(inventory: str) -> dict[str, Any]:
    """Return ``{hosts, tasks, skipped, changed, seconds}`` of a fabric run; ``tasks`` is the most that any host saw."""
    started = time.monotonic()
    done = subprocess.run(
        ["ansible-playbook", "-i", inventory, str(FABRIC)],
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [match.groupdict() for match in RECAP.finditer(done.stdout)]
    if done.returncode or not rows:
        raise SystemExit(f"the fabric run failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return {
        "hosts": len(rows),
        "tasks": max(int(row["ok"]) + int(row["skipped"]) for row in rows),
        "skipped": max(int(row["skipped"]) for row in rows),
        "changed": sum(int(row["changed"]) for row in rows),
        "seconds": round(time.monotonic() - started, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure all sizes, print them, and judge their growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each size (default: 5)")
    parser.add_argument("--inventory", metavar="INVENTORY", help="also count the tasks of a fabric run there")
    options = parser.parse_args(arguments)
    rows = [measure(hosts, options.repeat) for hosts in SIZES]
    growth = rows[-1]["per_host_ms"] / rows[-2]["per_host_ms"]
    linear = growth <= TOLERATED
    run = play(options.inventory) if options.inventory else None
    if options.json:
        print(json.dumps({"sizes": rows, "growth_per_host": growth, "linear": linear, "run": run}, indent=2))
    else:
        print(f"{'hosts':>5}  {'VFs':>5}  {'plan':>9}  {'render':>9}  {'a host':>9}")
        for row in rows:
            times = f"{1000 * row['plan_s']:6.1f} ms  {1000 * row['render_s']:6.1f} ms  {row['per_host_ms']:6.3f} ms"
            print(f"{row['hosts']:>5}  {row['vfs']:>5}  {times}")
        print(f"a host costs {growth:.2f} times as much among {SIZES[-1]} as among {SIZES[-2]}: ", end="")
        print("at most linear" if linear else f"more than linear (tolerated: {TOLERATED})")
        if run:
            print(
                f"a fabric run with nothing to do: {run['tasks']} tasks a host ({run['skipped']} of them skipped), ",
                end="",
            )
            print(f"{run['changed']} changes, {run['hosts']} hosts in {run['seconds']} s; aim: fewer than {FEW} tasks")
    return 0 if linear and (run is None or (run["tasks"] < FEW and run["changed"] == 0)) else 1


if __name__ == "__main__":
    sys.exit(main())
