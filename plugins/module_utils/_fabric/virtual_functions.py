# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create the planned SR-IOV virtual functions, from Ansible and again at every boot.

``gb10-sriov.service`` runs this file at boot before network-pre.target, so that netplan finds the VFs. netplan's
own ``virtual-function-count`` is not used: its unit of the 1.1 series does not wait for the PF, and the VFs were
missing after 2 of 2 measured reboots. netplan cannot set the MACs of VFs either.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from .._common.findings import Finding, Rule, Rules
from .._host import netns, system

PCI_ADDRESS = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
UNKNOWN_HOLDER = "unknown: in no network namespace; its driver is not bound, or a virtual machine has it"
RULES = Rules(
    {
        "sriov.pf.missing": Rule(
            "this host does not have this interface", "Look at `ip link`; name this host's PF in gb10_fabric_pfs", "pf"
        ),
        "sriov.firmware.disabled": Rule(
            "the firmware offers no virtual functions",
            "Install the package mstflint on the host, run `sudo mstconfig -d {pci} set SRIOV_EN=1 NUM_OF_VFS={count}`"
            " and power-cycle it; firmware is not changed here",
            "{pf} sriov_totalvfs",
        ),
        "sriov.count.above_hardware": Rule(
            "the firmware offers {most}",
            "Lower gb10_fabric_vf_count, or run `sudo mstconfig -d {pci} set SRIOV_EN=1 NUM_OF_VFS={count}` (package"
            " mstflint) and power-cycle",
            "{pf} vf_count",
        ),
        "sriov.vf.in_use": Rule(
            "a change from {now} to {count} VFs destroys all VFs, including this one",
            "Stop the pod first, a group with playbook serve_stop, or set sriov_force to true: the pod then loses its"
            " network",
            "{pf} VF {index}",
        ),
    },
    "kernel Documentation/PCI/pci-iov-howto.rst",
)


@dataclass(frozen=True)
class Pf:
    """A physical function and how many VFs it should have."""

    name: str
    vf_count: int


@dataclass(frozen=True)
class Vf:
    """A virtual function: its PF's name, its index on the PF, its interface name and its stable MAC."""

    pf: str
    vf_index: int
    netdev: str
    mac: str


@dataclass(frozen=True)
class VfState:
    """The host's present state; ``netdev`` is empty while another namespace has the VF, and ``holder`` names it.

    ``mac`` is the interface's own, ``admin_mac`` the one that the PF enforces (None: the kernel does not report it).
    """

    netdev: str
    mac: str
    admin_mac: str | None
    holder: str = ""


@dataclass(frozen=True)
class PfState:
    """The host's present state. ``totalvfs`` is None where the driver offers no SR-IOV."""

    name: str
    pci: str
    present: bool
    totalvfs: int | None
    numvfs: int
    vfs: dict[int, VfState]


@dataclass(frozen=True)
class Step:
    """One write: ``numvfs`` (``value`` is a number) or ``mac`` (``value`` is an address and ``netdev`` is set)."""

    action: str
    pf: str
    value: str
    vf_index: int = -1
    netdev: str = ""


class Sysfs:
    """The part of /sys that SR-IOV needs, below a root that the lab can change."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(self, pf: str) -> Path:
        return self.root / "class/net" / pf / "device"

    def number(self, pf: str, name: str) -> int | None:
        """Return sriov_totalvfs or sriov_numvfs; None when the driver has none."""
        text = system.read_text(self.device(pf) / name)
        return int(text) if text and text.isdigit() else None

    def pci(self, path: Path) -> str:
        """Return the PCI address to which a device link points, or an empty string."""
        name = path.resolve().name if path.exists() else ""
        return name if PCI_ADDRESS.match(name) else ""

    def vf_netdev(self, pf: str, index: int) -> str:
        """Return the interface name of a VF that is in this network namespace, or an empty string."""
        directory = self.device(pf) / f"virtfn{index}/net"
        names = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
        return names[0] if names else ""

    def write_numvfs(self, pf: str, count: int) -> None:
        """Request this number of VFs from the driver."""
        try:
            (self.device(pf) / "sriov_numvfs").write_text(str(count), encoding="ascii")
        except OSError as error:
            said = system.explain(error, self.device(pf) / "sriov_numvfs")
            raise system.HostError(
                f"{pf}: sriov_numvfs = {count} was refused. {said} The driver's reason is in `dmesg`."
            ) from error


def observe(sysfs: Sysfs, pfs: Iterable[Pf], vfs: Iterable[Vf]) -> dict[str, PfState]:
    """Read the present state of the named PFs and all their VFs; ``vfs`` helps to find a VF in another namespace."""
    links = system.links()
    known = {(vf.pf, vf.vf_index): vf for vf in vfs}
    spaces: list[netns.Holder] | None = None
    states = {}
    for pf in pfs:
        numvfs = sysfs.number(pf.name, "sriov_numvfs") or 0
        admin = {entry.get("vf"): entry.get("address") for entry in links.get(pf.name, {}).get("vfinfo_list", [])}
        found: dict[int, VfState] = {}
        for index in range(numvfs):
            vf = known.get((pf.name, index), Vf(pf.name, index, "", ""))
            name = sysfs.vf_netdev(pf.name, index)
            if name not in links:
                name = vf.netdev if vf.netdev in links else ""
            holder = ""
            if not name:
                spaces = netns.holders() if spaces is None else spaces
                pci = sysfs.pci(sysfs.device(pf.name) / f"virtfn{index}")
                holder = str(netns.holder_of(vf.netdev, vf.mac, pci, spaces) or "")
            mac = str(links.get(name, {}).get("address", ""))
            found[index] = VfState(name, mac, admin.get(index), holder)
        states[pf.name] = PfState(
            pf.name,
            sysfs.pci(sysfs.device(pf.name)),
            pf.name in links,
            sysfs.number(pf.name, "sriov_totalvfs"),
            numvfs,
            found,
        )
    return states


def check(pfs: Iterable[Pf], states: dict[str, PfState], force: bool) -> list[Finding]:
    """Return the findings that make the change impossible or harmful, before anything is written."""
    findings = []
    for pf in pfs:
        state = states[pf.name]
        pci = state.pci or f"<PCI address of {pf.name}>"
        words = {"pf": pf.name, "pci": pci, "most": state.totalvfs, "now": state.numvfs, "count": pf.vf_count}
        if not state.present:
            findings.append(RULES.finding("sriov.pf.missing", pf.name))
        elif pf.vf_count and not state.totalvfs:
            findings.append(RULES.finding("sriov.firmware.disabled", state.totalvfs, **words))
        elif pf.vf_count > (state.totalvfs or 0):
            findings.append(RULES.finding("sriov.count.above_hardware", pf.vf_count, **words))
        elif pf.vf_count != state.numvfs and not force:
            findings += [
                RULES.finding("sriov.vf.in_use", vf.holder or UNKNOWN_HOLDER, index=index, **words)
                for index, vf in sorted(state.vfs.items())
                if not vf.netdev
            ]
    return findings


def steps(pfs: Iterable[Pf], vfs: Iterable[Vf], states: dict[str, PfState]) -> list[Step]:
    """Return the writes from the observed to the planned state; an empty list if there is nothing to do.

    To change the number of VFs, 0 must be written first. Every VF is new after that, so all MACs are set again. A VF
    inside a pod's namespace is not changed.
    """
    planned = list(vfs)
    plan = []
    for pf in pfs:
        state = states[pf.name]
        renewed = pf.vf_count != state.numvfs
        if renewed:
            plan += [Step("numvfs", pf.name, "0")] if state.numvfs else []
            plan += [Step("numvfs", pf.name, str(pf.vf_count))] if pf.vf_count else []
        for vf in (vf for vf in planned if vf.pf == pf.name and vf.mac and vf.vf_index < pf.vf_count):
            now = state.vfs.get(vf.vf_index)
            settled = now is not None and now.mac == vf.mac and now.admin_mac in (None, vf.mac)
            if renewed or not (settled or (now is not None and now.holder)):
                plan.append(Step("mac", pf.name, vf.mac, vf.vf_index, vf.netdev))
    return plan


def apply(sysfs: Sysfs, todo: Iterable[Step], timeout: float) -> None:
    """Execute the steps, and wait with a limit for the driver and for udev's names. Raise HostError naming the VF."""
    for step in todo:
        if step.action == "numvfs":
            change_count(sysfs, step, timeout)
        else:
            await_netdev(sysfs, step, timeout)
            set_mac(step)


def change_count(sysfs: Sysfs, step: Step, timeout: float) -> None:
    """Write sriov_numvfs and wait until the driver confirms it."""
    count, device = int(step.value), sysfs.device(step.pf)

    def confirmed() -> bool:
        links = len(list(device.glob("virtfn*")))
        return sysfs.number(step.pf, "sriov_numvfs") == links == count

    sysfs.write_numvfs(step.pf, count)
    if not system.wait_for(confirmed, timeout):
        raise system.HostError(f"{step.pf}: sriov_numvfs did not become {step.value} within {timeout:.0f} s")


def await_netdev(sysfs: Sysfs, step: Step, timeout: float) -> None:
    """Wait until a VF's interface exists under its planned name."""

    def named() -> bool:
        return step.netdev in system.links()

    if not system.wait_for(named, timeout):
        name = sysfs.vf_netdev(step.pf, step.vf_index)
        why = f"the kernel calls it {name}: plan that name" if name else "its driver did not bind: see dmesg"
        raise system.HostError(
            f"{step.pf} VF {step.vf_index}: no interface {step.netdev} within {timeout:.0f} s; {why}"
        )


def set_mac(step: Step) -> None:
    """Set a VF's MAC on the interface, then through the PF where the kernel supports it, which survives a rebind.

    The order matters: igb refuses a change on the interface once the MAC was set through the PF.
    """
    system.run(["ip", "link", "set", "dev", step.netdev, "address", step.value])
    pf_link = system.links().get(step.pf, {})
    if any(entry.get("vf") == step.vf_index for entry in pf_link.get("vfinfo_list", [])):
        system.run(["ip", "link", "set", "dev", step.pf, "vf", str(step.vf_index), "mac", step.value])


def configuration(sysfs_root: str, pfs: Iterable[Pf], vfs: Iterable[Vf], origin: dict[str, int], timeout: int) -> str:
    """Return the content of /etc/gb10/sriov.json; ``origin`` is the state of every PF before the first change."""
    content = {
        "schema": 1,
        "sysfs_root": sysfs_root,
        "timeout": timeout,
        "origin": origin,
        "pfs": [asdict(pf) for pf in pfs],
        "vfs": [asdict(vf) for vf in vfs],
    }
    return json.dumps(content, indent=2) + "\n"


def boot(path: Path) -> list[str]:
    """Wait for every planned PF, restore its VFs, and return what went wrong for each PF."""
    config = json.loads(path.read_text(encoding="utf-8"))
    sysfs, timeout = Sysfs(Path(config["sysfs_root"])), float(config["timeout"])
    vfs = [Vf(**vf) for vf in config["vfs"]]
    problems = []
    for entry in config["pfs"]:
        try:
            problems += boot_pf(sysfs, Pf(**entry), vfs, timeout)
        except system.HostError as error:
            problems.append(str(error))
    return problems


def boot_pf(sysfs: Sysfs, pf: Pf, vfs: Iterable[Vf], timeout: float) -> list[str]:
    """Bring one PF to its planned state; its sysfs attributes appear only after the driver has bound."""
    if not system.wait_for(lambda: sysfs.number(pf.name, "sriov_totalvfs"), timeout):
        return [f"{pf.name}: no SR-IOV device within {timeout:.0f} s"]
    states = observe(sysfs, [pf], vfs)
    findings = check([pf], states, force=False)
    if not findings:
        apply(sysfs, steps([pf], vfs, states), timeout)
    return [str(finding) for finding in findings]


if __name__ == "__main__":
    failures = boot(Path(sys.argv[1]))
    sys.stdout.write(("\n".join(failures) or "all virtual functions are as planned") + "\n")
    raise SystemExit(bool(failures))
