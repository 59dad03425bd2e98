#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: netplan_transaction
short_description: Set the fabric's addresses and MTU with netplan, and undo the change unless it is confirmed
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs]
description:
  - Writes its own netplan file and sysctl file for the PFs and VFs of the fabric plan, and applies both as one
    transaction.
  - C(netplan generate) first reads the new configuration in a temporary root. Before anything is changed, the module
    arms an undo on the host. A systemd timer starts this undo after O(undo_timeout) seconds, and a reboot starts it at
    once; neither needs the controller.
  - After the change the module checks links, addresses, MTU and RoCE v2 GIDs, pings the default gateways, and compares
    the addresses, routes, rules and name servers of all other interfaces with those before. If a check fails, it
    restores the old state at once.
  - Reconfigures only the fabric's interfaces and does not use C(netplan apply). Where NetworkManager is netplan's
    renderer, systemd-networkd is started for the fabric's interfaces, and NetworkManager is told not to manage them.
  - The change stays only if a second call with O(state=confirmed) follows in time. Make this call over a new
    connection, which proves that the management link still works.
  - The module does not change a VF that a pod holds, because the address of such a VF is set inside the pod.
attributes:
  check_mode:
    support: full
    description: Validates with netplan and reports what would change. VFs that do not exist yet are accepted.
  diff_mode:
    support: full
    description: Shows the files and the live differences.
  idempotent:
    support: full
    description: Nothing is applied when files and live state are as planned.
  platform:
    support: full
    platforms: linux
    description: Needs netplan with systemd-networkd, iproute2, iputils-ping and Python 3.11 or newer on the host.
options:
  state:
    description:
      - V(checked) only reads. It fails where the plan names an interface that must not be touched or netplan refuses
        the files that the host has now, and warns of other netplan files and DHCP leases on the fabric's interfaces.
      - V(applied) brings the host to the plan.
      - V(confirmed) keeps the change whose O(transaction) is given.
      - V(restored) restores the state before the last confirmed change.
      - V(absent) restores the state before the first change. Once this is confirmed, all records of
        changes are deleted.
    type: str
    choices: [checked, applied, confirmed, restored, absent]
    default: applied
  pfs:
    description:
      - The PFs with C(name), in the form in which the fabric plan lists them for a host.
      - PFs with C(address), C(prefix) and C(routes) forward packets to each other. A rule of its own accepts these
        packets where a firewall drops forwarded ones.
    type: list
    elements: dict
    default: []
  vfs:
    description:
      - The VFs with C(netdev), C(address), C(prefix), C(mac) and C(rdma_device), in the form in which the fabric plan
        lists them for a host.
    type: list
    elements: dict
    default: []
  mtu:
    description: MTU of all PFs and VFs.
    type: int
    default: 9000
  transaction:
    description: The transaction that the changing call returned. Required with O(state=confirmed).
    type: str
  management_interfaces:
    description:
      - Interfaces that must not change. Interfaces with a default route and the interface of the Ansible session are
        always protected. The change is refused when the plan names one of them.
    type: list
    elements: str
    default: []
  undo_timeout:
    description: Seconds after which the host undoes an unconfirmed change.
    type: int
    default: 120
  settle_timeout:
    description: Seconds within which links, addresses and GIDs must appear.
    type: int
    default: 20
  check_gids:
    description: Require a RoCE v2 GID for the address of every VF.
    type: bool
    default: true
  netplan_path:
    description: The netplan file. Give it a higher number than the installer's file, so that it takes precedence.
    type: path
    default: /etc/netplan/60-gb10-fabric.yaml
  sysctl_path:
    description: The sysctl file.
    type: path
    default: /etc/sysctl.d/60-gb10-fabric.conf
"""

EXAMPLES = r"""
- name: Apply the fabric's addresses
  gb10.cluster.netplan_transaction:
    pfs: "{{ ansible_facts['gb10_fabric_plan'].hosts[inventory_hostname].pfs }}"
    vfs: "{{ ansible_facts['gb10_fabric_plan'].hosts[inventory_hostname].vfs }}"
  register: netplan_applied

- name: Open a new connection
  ansible.builtin.meta: reset_connection

- name: Confirm the change
  gb10.cluster.netplan_transaction:
    state: confirmed
    transaction: "{{ netplan_applied.transaction }}"
  when: netplan_applied is changed and not ansible_check_mode
"""

RETURN = r"""
transaction:
  description: The value to pass to O(state=confirmed); empty when nothing was changed.
  type: str
  returned: always
  sample: 20260401T120000-3fa2
differences:
  description: How the host differed from the plan, each with its layer.
  type: list
  elements: str
  returned: always
  sample: ["mtu: enp1s0f0v0 has 1500, planned 9000"]
in_place:
  description: With O(state=checked), whether files and live state are as planned already.
  returned: success
  type: bool
held:
  description: VFs that a pod holds, each with its pod.
  type: dict
  returned: always
  sample: {"enp1s0f0v0": "pod gb10-serving/gemma-0 (network namespace cni-5f)"}
findings:
  description: The errors that stopped the change before anything was written.
  type: list
  elements: dict
  returned: always
"""

import difflib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, netplan_files, netplan_undo, rdma
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


class Transaction:
    """One call of the module."""

    def __init__(self, module: AnsibleModule, result: dict[str, Any]) -> None:
        self.module = module
        self.params = module.params
        self.result = result
        self.state = netplan_undo.State()
        self.last = self.state.outcome()
        self.paths = {kind: Path(self.params[f"{kind}_path"]) for kind in ("netplan", "sysctl")}

    def desired(self, vfs_may_come: bool) -> list[netplan.Interface]:
        """Return the plan's interfaces; raise HostError if a finding stops the change before anything is written."""
        try:
            desired = netplan.interfaces(self.params["pfs"], self.params["vfs"], self.params["mtu"])
        except (KeyError, TypeError, ValueError) as error:
            raise system.HostError(f"Nothing was changed: pfs and vfs are not a host's fabric plan: {error}") from error
        links = system.links()
        held = self.result["held"] = netplan.held_vfs(desired, links)
        protected = netplan_files.protected_interfaces(self.params["management_interfaces"], links)
        findings = netplan.check(desired, links, protected, held, vfs_may_come)
        self.result["findings"] = [finding.as_dict() for finding in findings]
        if has_errors(findings):
            raise system.HostError("The network was not changed, the old state holds.\n" + format_findings(findings))
        return desired

    def check_host(self) -> None:
        """Check the host before its VFs are created."""
        system.require_writable([*self.paths.values(), netplan_files.NM_DROP_IN])
        desired = self.desired(vfs_may_come=True)
        netplan.validate({})
        present = {*system.links(), *self.result["held"]}
        if not self.state.pending.exists() and present.issuperset(interface.name for interface in desired):
            change, differences = self.planned(desired)
            self.result["in_place"] = not (netplan.outdated(change) or differences())
        self.result["msg"] = "netplan accepts the files of this host, and the plan changes only the fabric's interfaces"

    def alone(self) -> AbstractContextManager[None]:
        """Return the lock from the first check to the last, or nothing if this call only reads."""
        return nullcontext() if self.module.check_mode else self.state.lock(f"state {self.params['state']}")

    def apply(self) -> None:
        """Bring the host to the plan."""
        with self.alone():
            self.undo_leftover()
            self.perform(*self.planned(self.desired(vfs_may_come=self.module.check_mode)))

    def planned(self, desired: list[netplan.Interface]) -> tuple[netplan.Change, Callable[[], list[str]]]:
        """Return the change that brings the host to the plan, and what tells the differences from it."""
        held = self.result["held"]
        sysctls = netplan.sysctls(desired)
        forwarding = netplan.forwarding(desired)
        names = [interface.name for interface in desired]
        # Interfaces that the plan no longer has lose the addresses that an earlier plan gave them.
        earlier = netplan.rendered(system.read_text(self.paths["netplan"]) or "")
        change = netplan.Change(
            what="fabric plan",
            files={
                self.paths["netplan"]: netplan.render_netplan(desired),
                self.paths["sysctl"]: netplan.render_sysctl(desired),
                **drop_ins(names),
                **netplan_files.files(forwarding),
            },
            sysctls=sysctls,
            links=list(dict.fromkeys([*names, *earlier])),
            restore_links={},
            restore_sysctls={},
            timeout=self.params["undo_timeout"],
            networkd=True,
        )

        def differences() -> list[str]:
            found = netplan.deviations(desired, system.links(), held) + netplan.wrong_sysctls(sysctls)
            found += netplan_files.deviations({interface.name: interface.routes for interface in desired}, forwarding)
            if self.params["check_gids"]:
                found += netplan.gid_deviations(desired, held, rdma.read_devices(self.params["sysfs_root"]))
            return found

        return change, differences

    def go_back(self, forget: bool) -> None:
        """Restore the state before the last change, or before the first one if ``forget`` is true."""
        with self.alone():
            self.undo_leftover()
            if past := self.state.manifests():
                self.perform(netplan.back(past, forget, self.params["undo_timeout"]), list, always=True)
                return
            if forget and self.state.directory.exists() and not self.module.check_mode:
                netplan_undo.forget(self.state)
            self.result["msg"] = "This host has no confirmed change to undo"

    def perform(self, change: netplan.Change, differences: Any, always: bool = False) -> None:
        """Validate the change, report the differences and, outside of check mode, make the change."""
        stale = netplan.outdated(change)
        self.result["differences"] = differences()
        self.result["diff"] = diff(change, self.result["differences"])
        if not (stale or self.result["differences"] or always):
            self.result["msg"] = "Files and live state are as planned"
            return
        netplan.validate(change.files)
        self.result["changed"] = True
        if self.module.check_mode:
            self.result["msg"] = "Would change the network, with an undo until it is confirmed"
            return
        if self.last.get("outcome") == "undone":
            self.module.warn(f"The change before this one ({self.last['what']}, {self.last['at']}): {self.last['why']}")
        self.result["transaction"] = netplan.execute(self.state, change, differences, self.params["settle_timeout"])
        self.result["msg"] = f"Applied and checked; undone in {change.timeout} s unless it is confirmed"

    def undo_leftover(self) -> None:
        """Undo a change that an earlier run did not confirm, so that this run starts from a known state."""
        if self.state.pending.exists():
            if self.module.check_mode:
                raise system.HostError(
                    "An earlier network change still waits for its confirmation; the host undoes it by itself soon. Run"
                    " this again then"
                )
            note = netplan_undo.undo(self.state, "a new run found it unconfirmed")
            self.module.warn(f"An earlier network change was never confirmed: {note}")


def drop_ins(names: list[str]) -> dict[Path, str | None]:
    """Return the drop-in that lets systemd-networkd run beside NetworkManager; empty if NetworkManager is absent."""
    if not system.is_active(system.NETWORK_MANAGER) and not netplan_files.NM_DROP_IN.exists():
        return {}
    return {
        netplan_files.NM_DROP_IN: system.unmanaged(names),
        netplan_files.NETWORKD_DROP_IN: netplan_files.NETWORKD_KEEPS,
    }


def diff(change: netplan.Change, differences: list[str]) -> dict[str, str]:
    """Return the text for --diff."""
    text: list[str] = []
    for path, content in change.files.items():
        old = netplan_files.read(path)[0] or ""
        new = content or ""
        text += difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"before: {path}", f"after: {path}"
        )
    return {"prepared": "".join(text) + "".join(f"live: {line}\n" for line in differences)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["checked", "applied", "confirmed", "restored", "absent"],
                "default": "applied",
            },
            "pfs": {"type": "list", "elements": "dict", "default": []},
            "vfs": {"type": "list", "elements": "dict", "default": []},
            "mtu": {"type": "int", "default": DEFAULT_MTU},
            "transaction": {"type": "str"},
            "management_interfaces": {"type": "list", "elements": "str", "default": []},
            "undo_timeout": {"type": "int", "default": 120},
            "settle_timeout": {"type": "int", "default": 20},
            "check_gids": {"type": "bool", "default": True},
            "netplan_path": {"type": "path", "default": "/etc/netplan/60-gb10-fabric.yaml"},
            "sysctl_path": {"type": "path", "default": "/etc/sysctl.d/60-gb10-fabric.conf"},
            "sysfs_root": {"type": "path", "default": "/sys"},
        },
        required_if=[("state", "confirmed", ["transaction"])],
        supports_check_mode=True,
    )
    result: dict[str, Any] = {
        "changed": False,
        "msg": "",
        "transaction": "",
        "differences": [],
        "held": {},
        "in_place": False,
        "findings": [],
    }
    call = Transaction(module, result)
    try:
        if module.params["state"] == "checked":
            call.check_host()
        elif module.params["state"] == "applied":
            call.apply()
        elif module.params["state"] == "confirmed":
            if not module.check_mode:
                for line in netplan_undo.confirm(call.state, module.params["transaction"]):
                    module.warn(f"The change holds, but what it no longer needs could not be removed: {line}")
            result.update(changed=True, msg="The change holds", transaction=module.params["transaction"])
        else:
            call.go_back(forget=module.params["state"] == "absent")
    except (system.HostError, OSError) as error:
        # The host's own timer undoes a change that has already begun.
        module.fail_json(**{**result, "changed": False, "msg": system.explain(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
