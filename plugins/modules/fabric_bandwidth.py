#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_bandwidth
short_description: Measure the RDMA bandwidth between two hosts on all rails at once
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs]
description:
  - Runs C(ib_write_bw) of perftest between this host and a partner. It uses the VFs of one index on
    all common rails at the same time, and judges the Gb/s of each rail and of all rails together.
  - Start it with O(side=server) on one host, then with O(side=client) on the other. The servers stop by themselves.
attributes:
  check_mode:
    support: none
    description: Skipped in check mode, because it cannot measure without sending traffic.
  diff_mode:
    support: none
    description: The module makes no lasting change.
  idempotent:
    support: full
    description: Leaves nothing behind.
  platform:
    support: full
    platforms: linux
    description: Needs root, perftest and systemd on the host.
options:
  plan:
    description: The fabric plan.
    type: dict
    required: true
  host:
    description: Name of this host in the plan.
    type: str
    required: true
  partner:
    description: Name of the other host in the plan.
    type: str
    required: true
  side:
    description: The side that this host takes in the measurement.
    type: str
    choices: [server, client]
    required: true
  vf_index:
    description: Index of the VFs to use. These VFs must not be in a pod.
    type: int
    default: 0
  duration:
    description: Seconds to measure.
    type: int
    default: 5
  half_floor:
    description: Gb/s that a rail must reach that is measured alone, nine tenths of the expected 97.
    type: float
    default: 87.0
  full_floor:
    description: Gb/s that all rails must reach together, nine tenths of the expected 161. Each of them must reach its
      share.
    type: float
    default: 145.0
"""

EXAMPLES = r"""
- name: Start the server that spark2 measures against
  gb10.cluster.fabric_bandwidth:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: spark1
    partner: spark2
    side: server
  when: inventory_hostname == 'spark1'

- name: Measure against spark1
  gb10.cluster.fabric_bandwidth:
    plan: "{{ ansible_facts['gb10_fabric_plan'] }}"
    host: spark2
    partner: spark1
    side: client
  when: inventory_hostname == 'spark2'
  register: fabric_bandwidth
"""

RETURN = r"""
ok:
  description: Whether all floors are reached; V(true) for a waiting server.
  type: bool
  returned: always
measured:
  description: Average Gb/s by rail; null for a rail that moved nothing.
  type: dict
  returned: always
  sample: {"rail0": 97.5, "rail1": 97.4}
pair:
  description: The client and the server.
  type: list
  elements: str
  returned: always
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import rdma
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

# " 65536      115421           0.00               97.51                0.185985": bytes, count, peak, average, rate
RESULT_LINE = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)
NOT_YET_LISTENING = "Couldn't connect"
# What NVIDIA's playbook states for one half of a port, and what owners of two Sparks measured with both halves at once:
# the two halves share the cage's 200 Gb/s, so together they move less than twice 97.
EXPECTED_HALF_GBPS = 97.0
EXPECTED_FULL_GBPS = 161.0
# About nine tenths of these
HALF_FLOOR = 87.0
FULL_FLOOR = 145.0
DEGRADED_GBPS = 20.0  # measured: a degraded ConnectX-7 of a GB10 moves about 13 Gb/s although its link is healthy


PROGRAM = "ib_write_bw"  # of perftest
# TCP port on which perftest's ends meet for the first rail; each further rail uses the next one.
PORT = 18515


@dataclass(frozen=True)
class Lane:
    """One rail between two hosts: the local RDMA device and GID index, the server's address and TCP port."""

    rail: str
    rdma_device: str
    gid_index: int
    server: str
    port: int


def lanes(
    plan: Mapping[str, Any], host: str, server: str, client: str, vf_index: int, port: int, sysfs_root: str
) -> list[Lane]:
    """Return one lane per rail that both hosts have. Raise HostError if this host has no GID for its address."""
    ends = {
        name: {vf["rail"]: vf for vf in plan["hosts"][name]["vfs"] if vf["vf_index"] == vf_index}
        for name in (server, client)
    }
    rails = sorted(ends[server].keys() & ends[client].keys())
    expectations, findings = rdma.check_expected(rdma.read_devices(sysfs_root), [ends[host][rail] for rail in rails])
    found = []
    for rail, gid in zip(rails, expectations, strict=True):
        if gid.index is None:
            raise system.HostError(format_findings(findings))
        own = ends[host][rail]
        found.append(Lane(rail, gid.rdma_device, gid.index, ends[server][rail]["address"], port + own["rail_index"]))
    return found


def parse_average(output: str) -> float | None:
    """Return the average Gb/s of ``ib_write_bw --report_gbits``; None if it printed no result."""
    rows = RESULT_LINE.findall(output)
    return float(rows[-1]) if rows else None


def command(lane: Lane, duration: int) -> list[str]:
    """Return the command for either end."""
    options = f"-d {lane.rdma_device} -x {lane.gid_index} -p {lane.port} -F --report_gbits -D {duration}"
    return [PROGRAM, *options.split()]


def serve(every: Sequence[Lane], duration: int) -> None:
    """Start the servers as transient units with a time limit."""
    for lane in every:
        unit = f"gb10-bandwidth-{lane.port}"
        system.run(["systemctl", "stop", f"{unit}.service"], check=False)
        options = ["--quiet", "--collect", f"--unit={unit}", f"--property=RuntimeMaxSec={duration + 60}"]
        system.run(["systemd-run", *options, *command(lane, duration)])


def measure(every: Sequence[Lane], duration: int) -> tuple[dict[str, float | None], list[str]]:
    """Run the clients of all lanes at the same time; return Gb/s by rail, and the errors."""
    trouble: list[str] = []

    def one(lane: Lane) -> tuple[str, float | None]:
        said = ""

        def attempt() -> str | None:
            nonlocal said
            done = system.run([*command(lane, duration), lane.server], check=False, timeout=duration + 60)
            said = done.stdout + done.stderr
            return None if NOT_YET_LISTENING in said else said

        system.wait_for(attempt, timeout=10, step=0.5)
        average = parse_average(said)
        if average is None:
            trouble.append(f"{lane.rail}: {PROGRAM} gave no result: {' '.join(said.split())[-300:]}")
        return lane.rail, average

    with ThreadPoolExecutor(max_workers=max(1, len(every))) as pool:
        return dict(pool.map(one, every)), trouble


def judge_bandwidth(measured: Mapping[str, float | None], half_floor: float, full_floor: float) -> tuple[bool, str]:
    """Judge the Gb/s per rail of one pair, all measured at the same time; None means that a rail moved nothing.

    Each of several rails must reach its share of ``full_floor``: together they carry less than the sum of what each
    carries alone.
    Distinguishes a degraded ConnectX (all rails are slow on healthy links) from a fabric that uses only one half.
    """
    values = {rail: value or 0.0 for rail, value in sorted(measured.items())}
    shown = ", ".join(f"{rail} {value:.1f}" for rail, value in values.items()) + " Gb/s"
    dead = ", ".join(rail for rail, value in values.items() if value == 0.0)
    half_floor = half_floor if len(values) < 2 else min(half_floor, full_floor / len(values))
    crawling = ", ".join(rail for rail, value in values.items() if 0.0 < value < min(DEGRADED_GBPS, half_floor))
    slow = ", ".join(rail for rail, value in values.items() if value < half_floor)
    verdicts = [
        (not values, "no rail in common, so nothing was measured"),
        (
            not any(values.values()),
            f"no RDMA traffic at all ({shown}): see the errors below; if pings pass, a firewall of a host drops TCP"
            f" {PORT}, or an ACL of the switch UDP 4791",
        ),
        (bool(dead), f"half-rail: {dead} moved nothing while the other half works ({shown})"),
        (
            bool(crawling),
            f"degraded: {crawling} is slow although the link is healthy ({shown}): unplug the power of both hosts for"
            " a minute, a restart is not enough",
        ),
        (bool(slow), f"slow: {slow} below {half_floor:g} Gb/s ({shown})"),
        (len(values) > 1 and sum(values.values()) < full_floor, f"slow: together below {full_floor:g} Gb/s ({shown})"),
    ]
    return next(((False, text) for wrong, text in verdicts if wrong), (True, shown))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "partner": {"type": "str", "required": True},
            "side": {"type": "str", "choices": ["server", "client"], "required": True},
            "vf_index": {"type": "int", "default": 0},
            "duration": {"type": "int", "default": 5},
            "half_floor": {"type": "float", "default": HALF_FLOOR},
            "full_floor": {"type": "float", "default": FULL_FLOOR},
            "sysfs_root": {"type": "path", "default": "/sys"},
        },
    )
    params = module.params
    ends = (params["host"], params["partner"])
    server, client = ends if params["side"] == "server" else (ends[1], ends[0])
    result: dict[str, Any] = {"changed": False, "msg": "", "ok": True, "measured": {}, "pair": [client, server]}
    try:
        if shutil.which(PROGRAM) is None:
            raise system.HostError(
                f"{PROGRAM} is not installed on this host, so nothing was measured. Install it on all hosts: "
                "sudo apt-get install perftest"
            )
        pairs = lanes(params["plan"], params["host"], server, client, params["vf_index"], PORT, params["sysfs_root"])
        if params["side"] == "server":
            serve(pairs, params["duration"])
            result["msg"] = f"{len(pairs)} servers wait for {client}"
        else:
            measured, trouble = measure(pairs, params["duration"])
            good, verdict = judge_bandwidth(measured, params["half_floor"], params["full_floor"])
            result.update(ok=good, measured=measured, msg="\n".join([f"{client} → {server}: {verdict}", *trouble]))
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "ok": False, "msg": system.explain(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
