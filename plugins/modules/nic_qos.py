#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.module_utils._rdma import qos as rdma_qos

CONFIG = Path("/etc/gb10/qos.json")


def boot_unit(timeout: int, count: int) -> host_unit.HostUnit:
    """Return the unit that repeats this module's work at boot."""
    return host_unit.HostUnit(
        name="gb10-qos",
        description="Lossless class of RoCE on the GB10 fabric's ports",
        module="_rdma.qos",
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
    todo = [command for port, goal in goals.items() for command in rdma_qos.commands(port, now[port], goal)]
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
        for command in todo:
            system.run(command)
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
