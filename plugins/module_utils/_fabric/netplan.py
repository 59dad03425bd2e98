# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change a host's netplan files so that the host can undo the change itself.

Steps: validate in a temporary root → write new files beside the targets → arm the undo → rename → activate → check.
A failed check undoes the change at once. If the controller or the link fails, the host's own timer undoes it. Each file
has either its old or its new content at any time.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from .._common.findings import Finding, Rule, Rules
from .._host import netns, system
from .._host.interfaces import is_interface_name
from . import netplan_files
from .netplan_files import Attributes
from .netplan_undo import (
    PROC_SYS,
    SETTLE_S,
    LinkState,
    Manifest,
    State,
    abandon,
    arm,
    link_differences,
    link_state,
    restore_runtime,
    undo,
)
from .rdma import RdmaDevice, check_expected

RULES = Rules(
    {
        "netplan.management": Rule(
            "{why}",
            "If this is the management link, name the ConnectX port in gb10_fabric_pfs of this host. If it is a"
            " ConnectX port, remove the route or the DHCP server from the fabric: `ip route show default`",
            "interface",
        ),
        "netplan.vf.missing": Rule(
            "this host does not have this interface",
            "Create the VFs first: playbook fabric with --tags sriov",
            "interface",
        ),
        "netplan.pf.missing": Rule(
            "this host does not have this interface",
            "Name this host's PF in gb10_fabric_pfs; `ip link` lists them",
            "interface",
        ),
    }
)

# The planned state of the fabric's interfaces: as netplan YAML, as sysctls, and compared with a host.

HEADER = "# Written by gb10.cluster from the fabric plan. Change the inventory instead: the next run overwrites this.\n"
# With these values, two ports of one host answer only for their own addresses (arp_ignore), announce only those
# (arp_announce), and accept replies that arrive through the other rail (rp_filter 2, loose). Source:
# Documentation/networking/ip-sysctl.rst of the kernel.
SYSCTLS = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}


@dataclass(frozen=True)
class Interface:
    """One PF, or one VF with its MAC and RDMA device, which a pod may hold; the addresses have a prefix."""

    name: str
    mtu: int
    addresses: tuple[str, ...] = ()
    rdma_device: str = ""
    mac: str = ""
    is_vf: bool = False
    routes: tuple[tuple[str, str], ...] = ()  # (destination, gateway)


def interfaces(pfs: Iterable[Mapping[str, Any]], vfs: Iterable[Mapping[str, Any]], mtu: int) -> list[Interface]:
    """Return the interfaces of a host's part of the fabric plan, PFs first.

    Raises KeyError for a missing key and ValueError for a name or address that is not valid.
    """
    found = [_pf(pf, mtu) for pf in pfs]
    for vf in vfs:
        addresses = [f"{ip_address(vf['address'])}/{int(vf['prefix'])}"]
        if vf.get("address6"):
            addresses.append(f"{ip_address(vf['address6'])}/{int(vf['prefix6'])}")
        found.append(
            Interface(
                name=str(vf["netdev"]),
                mtu=mtu,
                addresses=tuple(addresses),
                rdma_device=str(vf.get("rdma_device") or ""),
                mac=str(vf.get("mac") or ""),
                is_vf=True,
            )
        )
    for interface in found:
        if not is_interface_name(interface.name):
            raise ValueError(f"{interface.name!r} is not the name of a network interface")
    return found


def _pf(pf: Mapping[str, Any], mtu: int) -> Interface:
    addresses = (f"{ip_address(pf['address'])}/{int(pf['prefix'])}",) if pf.get("address") else ()
    routes = tuple((str(ip_network(route["to"])), str(ip_address(route["via"]))) for route in pf.get("routes", ()))
    return Interface(str(pf["name"]), mtu, addresses, routes=routes)


def forwarding(desired: Iterable[Interface]) -> list[str]:
    """Return the PFs that forward packets: those to which the plan gave an address."""
    return [interface.name for interface in desired if interface.addresses and not interface.is_vf]


def render_netplan(desired: Iterable[Interface]) -> str:
    """Return the netplan file.

    The file has no DHCP, and routes only for transit: the fabric carries only its own subnets. VFs have no link-local
    addresses, because NCCL must not use a link-local GID; PFs have them, because cabling_info finds neighbours by them.
    ``optional`` keeps a boot from waiting for a switch. The file names the renderer, because a desktop's default is
    NetworkManager.
    """
    lines = [HEADER + "network:", "  version: 2", "  ethernets:"]
    for interface in desired:
        lines += [
            f"    {interface.name}:",
            "      renderer: networkd",
            "      optional: true",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            f"      link-local: [{'' if interface.is_vf else 'ipv6'}]",
            f"      mtu: {interface.mtu}",
        ]
        if interface.addresses:
            lines.append("      addresses:")
            lines += [f"        - {address}" for address in interface.addresses]
        if interface.routes:
            lines.append("      routes:")
            lines += [f"        - {{to: {to}, via: {via}}}" for to, via in interface.routes]
    return "\n".join(lines) + "\n"


def rendered(netplan: str) -> list[str]:
    """Return the interfaces of a file that render_netplan() wrote."""
    return re.findall(r"^    (\S+):$", netplan, re.MULTILINE)


def sysctls(desired: Iterable[Interface]) -> dict[str, int]:
    """Return the sysctls, keyed as in /proc/sys (``net/ipv4/conf/NAME/arp_ignore``).

    A PF without an address needs them too, else it answers for the addresses of its VFs.
    """
    every = list(desired)
    found = {f"net/ipv4/conf/{interface.name}/{key}": value for interface in every for key, value in SYSCTLS.items()}
    return found | {f"net/ipv4/conf/{name}/forwarding": 1 for name in forwarding(every)}


def render_sysctl(desired: Iterable[Interface]) -> str:
    """Return the sysctl.d file, which udev applies to each new VF. ``-`` ignores errors for VFs that are in a pod."""
    return HEADER + "".join(f"-{key} = {value}\n" for key, value in sysctls(desired).items())


def check(
    desired: Iterable[Interface],
    links: Mapping[str, Any],
    protected: Mapping[str, str],
    held: Mapping[str, str],
    vfs_may_come: bool,
) -> list[Finding]:
    """Return the findings that must stop the change before anything is written.

    ``protected`` maps an interface to the reason why the fabric must not use it, ``held`` a VF to the pod that holds
    it. ``vfs_may_come`` is true in check mode, where the VFs were not created yet.
    """
    findings = []
    for interface in desired:
        name = interface.name
        if name in protected:
            findings.append(RULES.finding("netplan.management", name, why=protected[name]))
        if name not in links and name not in held and not (interface.is_vf and vfs_may_come):
            findings.append(RULES.finding("netplan.vf.missing" if interface.is_vf else "netplan.pf.missing", name))
    return findings


def deviations(
    desired: Iterable[Interface], links: Mapping[str, Mapping[str, Any]], held: Mapping[str, str]
) -> list[str]:
    """Return how the live interfaces differ from the plan, each with its layer; VFs in pods are not checked."""
    found = []
    for interface in desired:
        link = links.get(interface.name)
        if link is None:
            if interface.name not in held:
                found.append(f"link: {interface.name} is missing")
            continue
        if link.get("operstate") != "UP" and "LOWER_UP" not in link.get("flags", []):
            found.append(
                f"link: {interface.name} is {str(link.get('operstate', 'unknown')).lower()}"
                " (no carrier: cable, port or switch)"
            )
        if link.get("mtu") != interface.mtu:
            found.append(f"mtu: {interface.name} has {link.get('mtu')}, planned {interface.mtu}")
        present = {f"{entry['local']}/{entry['prefixlen']}" for entry in link.get("addr_info", [])}
        lacking = [address for address in interface.addresses if address not in present]
        found += [f"address: {interface.name} lacks {address}" for address in lacking]
    return found


def gid_deviations(desired: Iterable[Interface], held: Mapping[str, str], devices: Sequence[RdmaDevice]) -> list[str]:
    """Return which VFs have no RoCE v2 GID for their address; VFs in pods are not checked."""
    expect = [
        {"rdma_device": interface.rdma_device, "address": interface.addresses[0].split("/")[0]}
        for interface in desired
        if interface.rdma_device and interface.addresses and interface.name not in held
    ]
    found, _findings = check_expected(devices, expect)
    return [f"gid: {item.rdma_device} has no RoCE v2 GID for {item.address}" for item in found if not item.found]


@dataclass(frozen=True)
class Change:
    """The files to write (None removes one), and the run-time state that netplan itself would not restore.

    ``attributes`` are those of files that a restore brings back; other files have the usual ones.
    """

    what: str
    files: Mapping[Path, str | None]
    sysctls: Mapping[str, int]
    links: Collection[str]
    restore_links: Mapping[str, LinkState]
    restore_sysctls: Mapping[str, str]
    timeout: int
    networkd: bool
    forget: bool = False
    attributes: Mapping[Path, Attributes] = field(default_factory=dict)

    def wanted(self) -> Iterator[tuple[Path, str | None, Attributes | None]]:
        """Yield each path with its new content and attributes; both are None where the change removes it."""
        for path, content in self.files.items():
            usual = None if content is None else Attributes(netplan_files.default_mode(path))
            yield path, content, self.attributes.get(path, usual)


def back(past: Sequence[Manifest], forget: bool, timeout: int) -> Change:
    """Return the change that undoes the last one of ``past``, or all of them if ``forget`` is true."""
    chosen = past if forget else past[-1:]
    files: dict[Path, str | None] = {}
    attributes: dict[Path, Attributes] = {}
    links: dict[str, LinkState] = {}
    sysctls: dict[str, str] = {}
    # The oldest manifest that lists a file, link or sysctl holds its original value.
    for manifest in reversed(chosen):
        files |= {Path(name): old for name, old in manifest.files.items()}
        attributes = {path: old for path, old in attributes.items() if str(path) not in manifest.files}
        attributes |= {Path(name): old for name, old in manifest.attributes.items()}
        links |= manifest.links
        sysctls |= manifest.sysctls
    return Change(
        what="reset" if forget else f"restore of the state before {chosen[0].id}",
        files=files,
        sysctls={},
        links=list(links),
        restore_links=links,
        restore_sysctls=sysctls,
        timeout=timeout,
        networkd=chosen[0].networkd,
        forget=forget,
        attributes=attributes,
    )


def validate(files: Mapping[Path, str | None]) -> None:
    """Run ``netplan generate`` on the host's present files, then with the new ones; raise HostError if it fails."""
    try:
        with netplan_files.generated({}):
            pass
    except system.HostError as error:
        raise _refusal(
            error,
            f"netplan already refuses the files that this host has now: {error}. A boot would leave the network "
            "unconfigured. Correct or remove the named file, check with `netplan generate`, and run this again.",
        ) from error
    if not files:
        return
    try:
        with netplan_files.generated(files):
            pass
    except system.HostError as error:
        raise _refusal(error, f"netplan refuses this host's files together with the fabric's: {error}") from error


def _refusal(error: system.HostError, why: str) -> system.HostError:
    if isinstance(error, system.NoAnswer):
        why = (
            f"{error}, so it is unknown whether netplan accepts the files. Find out with `uptime` and `dmesg` what "
            "slows the host, and run this again."
        )
    return system.HostError(f"Nothing was changed. {why}")


def held_vfs(desired: Iterable[Interface], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the planned VFs that are in another network namespace, each with its holder."""
    absent = [interface for interface in desired if interface.is_vf and interface.name not in links]
    spaces = netns.holders() if absent else []
    found = {}
    for interface in absent:
        holder = netns.holder_of(interface.name, interface.mac, "", spaces)
        if holder:
            found[interface.name] = str(holder)
    return found


def outdated(change: Change) -> list[Path]:
    """Return the files that the change would write or remove."""
    return [path for path, content, attributes in change.wanted() if not netplan_files.holds(path, content, attributes)]


def wrong_sysctls(wanted: Mapping[str, int]) -> list[str]:
    """Return the sysctls whose value differs, of interfaces that exist."""
    found = []
    for key, value in wanted.items():
        now = system.read_text(PROC_SYS / key)
        if now is not None and now != str(value):
            found.append(f"sysctl: {key} is {now}, planned {value}")
    return found


def execute(state: State, change: Change, differences: Callable[[], list[str]], settle: float) -> str:
    """Make the change and check it; return the id for confirm(). On failure restore the old state, raise HostError.

    The caller holds the lock of the state and has seen, since then, that no change is pending.
    """
    answering = netplan_files.answering_gateways()
    manifest = record(change)
    staged = stage_all(change)
    try:
        arm(state, manifest)
    except (system.HostError, OSError) as error:
        abandon(state, manifest)
        raise system.HostError(
            f"The undo could not be prepared, so the network was not changed: {system.explain(error)}"
        ) from error
    try:
        trouble = switch(change, staged)
        if not trouble:

            def wrong() -> list[str]:
                return differences() + netplan_files.differences(manifest.others, netplan_files.observe(manifest.links))

            system.wait_for(lambda: not wrong(), settle)
            silent = sorted(set(answering) - set(netplan_files.answering_gateways()))
            trouble = wrong() + [f"gateway {gateway} answered before and does not answer now" for gateway in silent]
        if not trouble:
            state.mark_applied(manifest)
    except (system.HostError, OSError) as error:
        trouble = [system.explain(error)]
    if trouble:
        said = "After the change:\n- " + "\n- ".join(trouble) + "\n"
        try:
            said += undo(state, "a check failed")
        except (system.HostError, OSError) as error:
            raise system.HostError(said + system.explain(error)) from error
        raise system.HostError(said)
    return manifest.id


def record(change: Change) -> Manifest:
    """Return a manifest of the host's present state."""
    links = system.links()
    states = {name: link_state(links[name]) for name in change.links if name in links}
    keys = {*change.sysctls, *change.restore_sysctls}
    sysctls = {key: text for key in sorted(keys) if (text := system.read_text(PROC_SYS / key)) is not None}
    present = {str(path): netplan_files.read(path) for path in change.files}
    identity = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}"
    return Manifest(
        identity,
        change.what,
        change.timeout,
        {name: content for name, (content, _attributes) in present.items()},
        states,
        sysctls,
        change.forget,
        others=netplan_files.observe(change.links),
        networkd=system.is_active(netplan_files.NETWORKD),
        attributes={name: attributes for name, (_content, attributes) in present.items() if attributes},
    )


def stage_all(change: Change) -> dict[Path, Path]:
    """Write all new files beside their targets; on failure (for example a full disk) remove them again."""
    staged: dict[Path, Path] = {}
    try:
        for path, content, attributes in change.wanted():
            if attributes is not None:
                staged[path] = netplan_files.stage(path, content, attributes)
    except system.HostError as error:
        with contextlib.suppress(OSError):
            for path in staged.values():
                path.unlink(missing_ok=True)
        raise system.HostError(f"The network was not changed, the old state holds: {system.explain(error)}") from error
    return staged


def switch(change: Change, staged: Mapping[Path, Path]) -> list[str]:
    """Rename the new files into place and activate them."""
    for path in change.files:
        if path in staged:
            staged[path].replace(path)
        else:
            path.unlink(missing_ok=True)
        if path.parent.is_dir():
            system.sync_directory(path.parent)
    trouble = netplan_files.activate(list(change.links), change.networkd)
    for key, value in change.sysctls.items():
        if (PROC_SYS / key).exists():
            (PROC_SYS / key).write_text(str(value), encoding="ascii")
    system.wait_for(lambda: not link_differences(change.restore_links), SETTLE_S)
    return trouble + restore_runtime(change.restore_links, change.restore_sysctls)
