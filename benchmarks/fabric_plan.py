#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the fabric's planning and rendering for 4, 64 and 256 hosts.

    benchmarks/fabric_plan.py [--json] [--repeat N]

Each size plans two rails with eight VFs a PF, then renders every host's netplan and sysctl files and all
NetworkAttachmentDefinitions. The best of N runs counts. Exits 1 when 256 hosts cost more than linearly: more than
1.5 times the 64 hosts' time a host.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins"))

from module_utils._fabric_plan import plan_fabric
from module_utils._findings import has_errors
from module_utils._netplan import interfaces, render_netplan, render_sysctl
from module_utils._networks import nads

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


def main(arguments: list[str] | None = None) -> int:
    """Measure all sizes, print them, and judge their growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="runs of each size (default: 5)")
    options = parser.parse_args(arguments)
    rows = [measure(hosts, options.repeat) for hosts in SIZES]
    growth = rows[-1]["per_host_ms"] / rows[-2]["per_host_ms"]
    linear = growth <= TOLERATED
    if options.json:
        print(json.dumps({"sizes": rows, "growth_per_host": growth, "linear": linear}, indent=2))
    else:
        print(f"{'hosts':>5}  {'VFs':>5}  {'plan':>9}  {'render':>9}  {'a host':>9}")
        for row in rows:
            times = f"{1000 * row['plan_s']:6.1f} ms  {1000 * row['render_s']:6.1f} ms  {row['per_host_ms']:6.3f} ms"
            print(f"{row['hosts']:>5}  {row['vfs']:>5}  {times}")
        print(f"a host costs {growth:.2f} times as much among {SIZES[-1]} as among {SIZES[-2]}: ", end="")
        print("at most linear" if linear else f"more than linear (tolerated: {TOLERATED})")
    return 0 if linear else 1


if __name__ == "__main__":
    sys.exit(main())
