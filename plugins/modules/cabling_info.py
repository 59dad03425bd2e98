#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cabling_info
short_description: Find which machine is at the other end of each fabric port
version_added: 0.1.0
description:
  - Pings all IPv6 nodes of the link of every physical function and reads which MAC addresses answer. Needs no address
    on the port and changes nothing. Takes about three seconds.
  - Also reads speed, PCIe link and MTU of each port, and the addresses of all interfaces.
  - Where C(lldpd) is installed, it names the switch and its port. If its service does not run, an instance of it runs
    for five seconds and announces the host on these ports only. The service stays as it is.
  - Sets the fact C(gb10_cabling), which M(gb10.cluster.cabling_report) compares with the other hosts' facts.
  - Needs root, iproute2 and iputils-ping on the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs, gb10.cluster.shared.readonly]
options:
  switches:
    description: Whether C(lldpd) is asked for the switch, which takes five seconds.
    type: bool
    default: true
  required:
    description: Whether the task fails on a host that cannot look, for example without root. Otherwise it returns no
      facts.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Find the neighbours of every port
  gb10.cluster.cabling_info:
"""

RETURN = r"""
ansible_facts:
  description:
    - C(gb10_cabling), a list with one entry per port. C(mtu_passes) is the MTU that reaches a neighbour, 0 if none is.
      C(link_local) is false if the port has no IPv6 address by which neighbours could be found.
    - C(gb10_addresses), the addresses with prefix of every interface.
  returned: success
  type: dict
  sample:
    gb10_cabling:
      - {name: enp1s0f0np0, mac: "48:b0:2d:00:01:00", carrier: true, speed_mbps: 200000, pcie_width: 4,
         neighbours: ["48:b0:2d:00:02:00"], mtu: 9000, mtu_passes: 9000, link_local: true}
    gb10_addresses: {enP7s7: [192.168.10.11/24]}
"""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.physical_functions import read_pfs
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._node.devices import read_ports

IPV6_HEADERS = 48  # bytes: IPv6 header 40, ICMPv6 header 8
ETHERNET_MTU = 1500
# A switch answers a new neighbour with four announcements, one per second (IEEE 802.1AB-2009, 9.2.5.19, txFastInit).
# lldpd does so only if the neighbour has an LLDP-MED class (lldpd 1.0.18, lldpd_decode), else it answers within 30 s.
LLDP_WAIT_S = 5
LLDP_START_S = 20
LLDP_CLASS = ("-M", "1")  # generic endpoint
# "64 bytes from fe80::4ab0:2dff:fe00:100%enp1s0f0np0: icmp_seq=1 ttl=64 time=0.1 ms"
_ANSWER = re.compile(r"bytes from (fe80:[0-9a-f:]+)%")


def look(port: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the MACs that answer on the link of a port, and the largest packet that passes to the first of them.

    Every IPv6 host answers a ping to all nodes of the link from its link-local address. ``own`` are the MACs that are
    at this end of the cable: the port's VFs answer too. ``mtu_passes`` is None if it is unknown, and 0 if no packet
    passes.
    """
    seen: dict[str, Any] = {"neighbours": [], "mtu_passes": None}
    if not port["carrier"]:
        return seen
    name = port["name"]
    command = ["ping", "-6", "-n", "-c", "3", "-i", "0.1", "-W", "1", f"ff02::1%{name}"]
    answers = set(_ANSWER.findall(system.run(command, check=False).stdout))
    known = {entry["dst"]: entry for entry in system.run_json(["ip", "-6", "-j", "neighbour", "show", "dev", name])}
    found = sorted(
        (address, known[address]["lladdr"].lower())
        for address in answers
        if known.get(address, {}).get("lladdr", "").lower() not in {"", *own}  # the port's own answer has no entry
    )
    if found:
        sizes = sorted({int(port["mtu"] or ETHERNET_MTU), ETHERNET_MTU}, reverse=True)
        seen["mtu_passes"] = next((size for size in sizes if _passes(found[0][0], name, size)), 0)
    return seen | {"neighbours": [mac for _address, mac in found]}


def _passes(address: str, name: str, mtu: int) -> bool:
    size = str(mtu - IPV6_HEADERS)
    command = ["ping", "-6", "-n", "-q", "-M", "do", "-s", size, "-c", "2", "-i", "0.1", "-W", "1", f"{address}%{name}"]
    return system.run(command, check=False).returncode == 0


def look_everywhere(ports: Iterable[Mapping[str, Any]], switches: bool = True) -> list[dict[str, Any]]:
    """Return the ports with what each one sees; all ports are asked at the same time, and ``switches`` only if told."""
    links = system.links()
    macs = {name: str(link.get("address", "")).lower() for name, link in links.items()}
    local = {
        name: any(str(entry.get("local", "")).startswith("fe80:") for entry in link.get("addr_info", []))
        for name, link in links.items()
    }
    every = [
        {**port, "mac": macs.get(port["name"], ""), "link_local": local.get(port["name"], False)} for port in ports
    ]
    # Another port of this host is at the other end if a cable joins two of its cages.
    near = set(macs.values()) - {port["mac"] for port in every}
    named = [port["name"] for port in every] if switches else []
    with lldp(named) as announced, ThreadPoolExecutor(max(1, len(every))) as pool:
        seen = list(pool.map(lambda port: look(port, {*near, port["mac"]}), every))
        heard = announced(near)
    return [_join(port, found, heard.get(port["name"], {})) for port, found in zip(every, seen, strict=True)]


def _join(port: Mapping[str, Any], found: Mapping[str, Any], heard: Mapping[str, Any]) -> dict[str, Any]:
    # An announcement may have the MAC of another port of its host, or be of a machine that left. An answer cannot.
    macs = found["neighbours"] or [mac for mac in dict.fromkeys(heard.get("macs", ())) if mac != port["mac"]]
    names = {key: value for key, value in heard.items() if key != "macs"}
    return {**port, **found, **names, "neighbours": macs}


@contextmanager
def lldp(ports: Sequence[str]) -> Iterator[Callable[[Collection[str]], dict[str, dict[str, Any]]]]:
    """Yield a function that returns what switches and hosts announce on the ports, except those with the given MACs.

    It waits for their announcements.

    A running lldpd is asked. If it is installed and does not run, an instance of our own runs meanwhile, which
    announces this host on these ports only and leaves the service as it is.
    """
    if system.is_active("lldpd.service"):
        yield lambda own: _ask([], own)
        return
    if not ports or not shutil.which("lldpd"):
        yield lambda own: {}
        return
    with tempfile.TemporaryDirectory(prefix="gb10-lldp-", dir="/run") as place:
        # lldpd starts paused, and its unprivileged process must reach the socket to resume.
        Path(place).chmod(0o755)
        files = ["-u", f"{place}/socket", "-p", f"{place}/pid"]
        # -d keeps it in the foreground. system.run would wait for its end.
        with system.beside(["lldpd", "-d", *LLDP_CLASS, *files, "-I", ",".join(ports)]) as process:

            def announced(own: Collection[str]) -> dict[str, dict[str, Any]]:
                time.sleep(max(0.0, LLDP_WAIT_S - (time.monotonic() - started)))
                return _ask(files[:2], own)

            try:
                # It announces nothing before it listens, and an emulated machine needs seconds until then.
                system.wait_for(lambda: Path(files[1]).exists() or process.poll() is not None, LLDP_START_S)
                started = time.monotonic()
                yield announced
            finally:
                process.terminate()


def _ask(where: Sequence[str], own: Collection[str]) -> dict[str, dict[str, Any]]:
    try:
        return parse_lldp(system.run(["lldpctl", *where, "-f", "json0"]).stdout, own)
    except (system.HostError, ValueError):
        return {}


def parse_lldp(text: str, own: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return what each interface hears, from ``lldpctl -f json0``: the switch and its port, and MACs of other ports.

    json0 makes every element a list. A port announces its name or its MAC. The capability Bridge distinguishes a switch
    from a host. A running lldpd also announces on the VFs of a port, after the port itself: the first one is kept. The
    port hears those of its own VFs as well, with MACs in ``own``.
    """
    found: dict[str, dict[str, Any]] = {}
    for lldp_list in json.loads(text or "{}").get("lldp", []):
        for interface in lldp_list.get("interface", []):
            chassis, port = _first(interface.get("chassis")), _first(interface.get("port"))
            kinds = {entry.get("type") for entry in chassis.get("capability", []) if entry.get("enabled")}
            macs = [entry["value"].lower() for entry in port.get("id", []) if entry.get("type") == "mac"]
            if not set(macs).isdisjoint(own):
                continue
            heard = found.setdefault(str(interface.get("name")), {"macs": []})
            heard["macs"] += macs
            if "Bridge" in kinds and "switch" not in heard:
                heard |= {"switch": _value(chassis, "name", "id"), "switch_port": _value(port, "descr", "id")}
    return found


def _first(items: Any) -> dict[str, Any]:
    return items[0] if isinstance(items, list) and items else {}


def _value(item: Mapping[str, Any], *keys: str) -> str:
    return next((str(_first(item[key]).get("value", "")) for key in keys if item.get(key)), "")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "switches": {"type": "bool", "default": True},
            "required": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    root = module.params["sysfs_root"]

    def refuse(msg: str) -> NoReturn:
        if module.params["required"]:
            module.fail_json(changed=False, msg=msg)
        module.exit_json(changed=False, msg=msg)

    if remedy := system.root_remedy():
        # ping and lldpd fail, and every port would seem to see nobody.
        refuse(f"The neighbours of the ports were not looked for. {remedy}")
    try:
        ports = look_everywhere(read_ports(Path(root), read_pfs(root), {}, {}), module.params["switches"])
        own = {name: list(system.addresses(link)) for name, link in system.links().items()}
    except (system.HostError, OSError) as error:
        refuse(system.explain(error))
    seeing = sum(bool(port["neighbours"]) for port in ports)
    msg = f"{len(ports)} ports, {seeing} of them see a neighbour"
    module.exit_json(changed=False, ansible_facts={"gb10_cabling": ports, "gb10_addresses": own}, msg=msg)


if __name__ == "__main__":
    main()
