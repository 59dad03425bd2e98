#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_qos
short_description: Configure a lossless class for RoCE on a host's ConnectX ports, also after a reboot
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
description:
  - Makes the ports trust DSCP, assigns the DSCPs of RoCE and of its congestion notifications (CNP) to separate classes,
    and enables PFC only for the class of RoCE, so that this class pauses instead of dropping packets.
  - Records the settings of every port before the first change; O(state=absent) restores exactly these.
  - This helps only if the switch has the same classes and C(NCCL_IB_TC=106) is set, which marks NCCL's packets with
    DSCP 26.
attributes:
  diff_mode:
    support: full
    description: Shows the classes of every port before and after.
  platform:
    support: full
    platforms: linux
    description: Needs root, C(dcb) of iproute2 5.11 or newer, systemd and Python 3.11 or newer on the host.
options:
  state:
    description:
      - V(present) sets the classes.
      - V(absent) restores the settings that the ports had before the first change, and removes the boot unit. If
        nothing was changed, it does nothing and does not need C(dcb).
    type: str
    choices: [present, absent]
    default: present
  ports:
    description: Names of the PFs.
    type: list
    elements: str
    default: []
  lossless_class:
    description: The class of RoCE. PFC is enabled for this class only.
    type: int
    default: 3
  roce_dscp:
    description: The DSCP of RoCE packets.
    type: int
    default: 26
  cnp_class:
    description: The class of congestion notifications.
    type: int
    default: 6
  cnp_dscp:
    description: The DSCP of congestion notifications.
    type: int
    default: 48
  boot_timeout:
    description: Seconds that the boot unit waits for a port.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Configure a lossless class for RoCE
  gb10.cluster.nic_qos:
    ports: [enp1s0f0np0, enP2p1s0f0np0]

- name: Restore the original settings of the ports
  gb10.cluster.nic_qos:
    state: absent
"""

RETURN = r"""
commands:
  description: The commands that were run, or would be run outside of check mode.
  type: list
  elements: str
  returned: always
  sample: ["dcb app replace dev enp1s0f0np0 dscp-prio 26:3"]
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import qos as rdma_qos
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit

CONFIG = Path("/etc/gb10/qos.json")


def boot_unit(timeout: int, count: int) -> host_unit.HostUnit:
    """Return the unit that repeats this module's work at boot."""
    return host_unit.HostUnit(
        name="gb10-qos",
        description="Lossless class of RoCE on the GB10 fabric's ports",
        module="_fabric.qos",
        config=CONFIG,
        arguments=str(CONFIG),
        timeout=timeout * max(1, count) + 60,
    )


def asked(params: dict[str, Any]) -> rdma_qos.Qos:
    """Return the classes that the options request. Raise HostError for invalid values."""
    numbers = {key: params[key] for key in ("lossless_class", "cnp_class", "roce_dscp", "cnp_dscp")}
    wrong = [f"{key} {value}" for key, value in numbers.items() if not 0 <= value < (8 if "class" in key else 64)]
    if params["roce_dscp"] == params["cnp_dscp"]:
        wrong.append(f"roce_dscp and cnp_dscp are both {params['cnp_dscp']}")
    if wrong:
        raise system.HostError(f"Nothing was changed: a class is 0 … 7, a DSCP 0 … 63: {', '.join(wrong)}")
    return rdma_qos.Qos(
        frozenset([params["lossless_class"]]),
        {params["roce_dscp"]: params["lossless_class"], params["cnp_dscp"]: params["cnp_class"]},
    )


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Bring all ports to the desired state and fill in the result."""
    config = system.read_state(CONFIG)
    origin = {port: rdma_qos.from_dict(data) for port, data in config.get("origin", {}).items()}
    present = module.params["state"] == "present"
    if present:
        wanted = asked(module.params)
        goals = dict.fromkeys(module.params["ports"], wanted)
        # the recorded state includes a DSCP that this run changes for the first time
        for port in goals:
            before = rdma_qos.observe(port, wanted.classes)
            known = origin.get(port, before)
            origin[port] = rdma_qos.Qos(known.lossless, {**before.classes, **known.classes})
        goals = {port: rdma_qos.Qos(wanted.lossless, {**origin[port].classes, **wanted.classes}) for port in goals}
        text = rdma_qos.configuration(wanted, origin, goals, module.params["boot_timeout"])
    else:
        # a port that no longer exists has no classes to restore
        goals, text = {port: qos for port, qos in origin.items() if Path("/sys/class/net", port).exists()}, ""
    unit = boot_unit(module.params["boot_timeout"], len(goals))
    now = {port: rdma_qos.observe(port, goal.classes) for port, goal in goals.items()}
    todo = [command for port, goal in goals.items() for command in rdma_qos.steps(port, now[port], goal)]
    outdated = unit.outdated(text) if present else unit.present()
    result["commands"] = [" ".join(command) for command in todo]
    result["changed"] = bool(todo or outdated)
    result["diff"] = {
        "before": json.dumps({port: qos.as_dict() for port, qos in now.items()}, indent=2) + "\n",
        "after": json.dumps({port: qos.as_dict() for port, qos in goals.items()}, indent=2) + "\n",
    }
    if not module.check_mode:
        # Write the configuration first: it records the original state, also if a later step fails.
        if present and outdated:
            unit.install(text)
        rdma_qos.apply(todo)
        if not present and outdated:
            unit.remove()
    what = "RoCE has its lossless class" if present else "all QoS settings of this collection were removed"
    result["msg"] = f"{len(goals)} ports, {len(todo)} commands: {what}"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "ports": {"type": "list", "elements": "str", "default": []},
            "lossless_class": {"type": "int", "default": 3},
            "roce_dscp": {"type": "int", "default": 26},
            "cnp_class": {"type": "int", "default": 6},
            "cnp_dscp": {"type": "int", "default": 48},
            "boot_timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, commands=[])


if __name__ == "__main__":
    main()
