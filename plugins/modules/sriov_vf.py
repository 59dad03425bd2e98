#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov_vf
short_description: Create virtual functions with stable MACs on a host's ConnectX ports, also after a reboot
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging, gb10.cluster.shared.sysfs]
description:
  - Sets the number of virtual functions (VFs) of every named physical function (PF), and their MAC addresses, to the
    values of the fabric plan. One call handles all PFs of a host.
  - To change the number of VFs, the kernel must first destroy all VFs of the PF, also those that pods use. The module
    refuses this while another network namespace has a VF, and names the pod and the namespace.
  - The module never changes firmware. Where firmware offers no VFs, the message contains the command that enables them.
attributes:
  diff_mode:
    support: full
    description: Shows VF counts, MAC addresses and files before and after.
  platform:
    support: full
    platforms: linux
    description: Needs root, iproute2, systemd and Python 3.11 or newer on the host.
options:
  state:
    description:
      - V(present) creates the VFs of O(pfs) and O(vfs).
      - V(absent) restores the number of VFs that the PFs had before the first change, and removes the boot unit.
    type: str
    choices: [present, absent]
    default: present
  pfs:
    description:
      - The PFs with their number of VFs.
      - C(ansible_facts.gb10_fabric_plan) has this list for each host; further keys of its entries are ignored.
    type: list
    elements: dict
    default: []
  vfs:
    description:
      - The VFs with C(pf), C(vf_index), C(netdev) (the name that udev assigns) and C(mac).
      - C(ansible_facts.gb10_fabric_plan) has this list for each host; further keys of its entries are ignored.
    type: list
    elements: dict
    default: []
  force:
    description: Change the number even while a pod holds a VF. The pod loses its network.
    type: bool
    default: false
  timeout:
    description: Seconds to wait for the driver and for udev after a change.
    type: int
    default: 30
  boot_timeout:
    description: Seconds that the boot unit waits for a PF; after that, the boot continues without its VFs.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Create one virtual function on each half of the port
  gb10.cluster.sriov_vf:
    pfs:
      - {name: enp1s0f0np0, vf_count: 1}
      - {name: enP2p1s0f0np0, vf_count: 1}
    vfs:
      - {pf: enp1s0f0np0, vf_index: 0, netdev: enp1s0f0v0, mac: "02:67:00:00:01:00"}
      - {pf: enP2p1s0f0np0, vf_index: 0, netdev: enP2p1s0f0v0, mac: "02:67:00:01:01:00"}

- name: Restore the original number of VFs
  gb10.cluster.sriov_vf:
    state: absent
"""

RETURN = r"""
pfs:
  description: The PFs with C(name), C(present), C(totalvfs), C(numvfs) and their C(vfs) (C(netdev), C(mac), C(holder)).
  type: list
  elements: dict
  returned: always
steps:
  description: The writes that were made, or would be made outside of check mode.
  type: list
  elements: str
  returned: always
  sample: ["enp1s0f0np0: sriov_numvfs = 2"]
findings:
  description: The errors that stopped the change, with C(rule), C(key), C(value), C(reason) and C(remedy).
  type: list
  elements: dict
  returned: always
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import virtual_functions as sriov
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit

CONFIG = Path("/etc/gb10/sriov.json")
# Without this file NetworkManager starts DHCP on every new VF before netplan's file for the VF exists.
NM_DROP_IN = system.NETWORK_MANAGER_DIRECTORY / "conf.d/60-gb10-sriov.conf"


def boot_unit(timeout: int, pf_count: int, vfs: list[sriov.Vf]) -> host_unit.HostUnit:
    """Return the unit that repeats this module's work at boot."""
    return host_unit.HostUnit(
        name="gb10-sriov",
        description="SR-IOV virtual functions of the GB10 fabric",
        module="_fabric.virtual_functions",
        config=CONFIG,
        arguments=str(CONFIG),
        timeout=timeout * max(1, pf_count) * 2 + 60,
        extra={NM_DROP_IN: system.unmanaged([vf.netdev for vf in vfs])}
        if system.NETWORK_MANAGER_DIRECTORY.is_dir()
        else {},
    )


def describe(step: sriov.Step) -> str:
    if step.action == "numvfs":
        return f"{step.pf}: sriov_numvfs = {step.value}"
    return f"{step.pf} VF {step.vf_index} ({step.netdev}): MAC {step.value}"


def snapshot(states: dict[str, sriov.PfState], files: list[str]) -> str:
    """Return the text that the diff compares."""
    shown = {
        name: {"vf_count": state.numvfs, "macs": {vf.netdev: vf.mac for vf in state.vfs.values() if not vf.holder}}
        for name, state in states.items()
    }
    return json.dumps({"pfs": shown, "files": files}, indent=2) + "\n"


def planned(states: dict[str, sriov.PfState], steps: list[sriov.Step]) -> dict[str, sriov.PfState]:
    after = dict(states)
    for step in steps:
        state = after[step.pf]
        if step.action == "numvfs":
            after[step.pf] = sriov.PfState(state.name, state.pci, state.present, state.totalvfs, int(step.value), {})
        else:
            vfs = {**state.vfs, step.vf_index: sriov.VfState(step.netdev, step.value, None)}
            after[step.pf] = sriov.PfState(
                state.name, state.pci, state.present, state.totalvfs, state.numvfs, dict(sorted(vfs.items()))
            )
    return after


def report(states: dict[str, sriov.PfState]) -> list[dict[str, Any]]:
    found = []
    for state in states.values():
        vfs = [{"vf_index": index, **asdict(vf)} for index, vf in sorted(state.vfs.items())]
        found.append({**asdict(state), "vfs": vfs})
    return found


def desired(module: AnsibleModule, config: dict[str, Any]) -> tuple[list[sriov.Pf], list[sriov.Vf]]:
    """Return the PFs and VFs to which this run should bring the host."""
    if module.params["state"] == "absent":
        return [sriov.Pf(name, count) for name, count in config.get("origin", {}).items()], []
    try:
        pfs = [sriov.Pf(str(pf["name"]), int(pf["vf_count"])) for pf in module.params["pfs"]]
        vfs = [
            sriov.Vf(str(vf["pf"]), int(vf["vf_index"]), str(vf["netdev"]), str(vf["mac"]))
            for vf in module.params["vfs"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise system.HostError(f"pfs need name and vf_count, vfs need pf, vf_index, netdev and mac: {error}") from error
    return pfs, vfs


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Bring the host to the desired state and fill in the result."""
    config = system.read_state(CONFIG)
    pfs, vfs = desired(module, config)
    sysfs = sriov.Sysfs(Path(module.params["sysfs_root"]))
    states = sriov.observe(sysfs, pfs, vfs or [sriov.Vf(**vf) for vf in config.get("vfs", [])])
    findings = sriov.check(pfs, states, module.params["force"])
    todo = sriov.steps(pfs, vfs, states)
    unit = boot_unit(module.params["boot_timeout"], len(pfs), vfs)
    persist = module.params["state"] == "present"
    origin = {**{state.name: state.numvfs for state in states.values()}, **config.get("origin", {})}
    text = sriov.configuration(module.params["sysfs_root"], pfs, vfs, origin, module.params["boot_timeout"])
    outdated = unit.outdated(text) if persist else unit.present()
    result.update(
        changed=bool(todo or outdated),
        pfs=report(states),
        steps=[describe(step) for step in todo],
        findings=[finding.as_dict() for finding in findings],
    )
    if has_errors(findings):
        raise system.HostError("Nothing was changed.\n" + format_findings(findings))
    missing = [str(path) for path in outdated]
    after = snapshot(planned(states, todo), [f"{path}: as planned" if persist else f"{path}: gone" for path in missing])
    result["diff"] = {
        "before": snapshot(states, [f"{path}: {'differs' if persist else 'present'}" for path in missing]),
        "after": after,
    }
    if not module.check_mode:
        # Write the configuration first: it records the original state, also if a later step fails.
        if persist and outdated:
            unit.install(text)
            system.reload_network_manager()
        sriov.apply(sysfs, todo, module.params["timeout"])
        if not persist and outdated:
            unit.remove()
            system.reload_network_manager()
        result["pfs"] = report(sriov.observe(sysfs, pfs, vfs))
    total = sum(pf.vf_count for pf in pfs)
    result["msg"] = f"{total} virtual functions on {len(pfs)} ports, {len(todo)} writes"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "pfs": {"type": "list", "elements": "dict", "default": []},
            "vfs": {"type": "list", "elements": "dict", "default": []},
            "force": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 30},
            "boot_timeout": {"type": "int", "default": 60},
            "sysfs_root": {"type": "path", "default": "/sys"},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, pfs=[], steps=[], findings=[])


if __name__ == "__main__":
    main()
