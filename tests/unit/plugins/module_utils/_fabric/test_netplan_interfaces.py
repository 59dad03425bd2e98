# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the files, sysctls, findings and deviations of the fabric's interfaces with a stored text."""

from collections.abc import Mapping
from typing import Any

import pytest
import stored
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import Gid, RdmaDevice, RdmaPort

PFS = [{"name": "pf0"}]
VFS: list[dict[str, Any]] = [{"netdev": "vf0", "address": "10.100.0.1", "prefix": 24, "rdma_device": "mlx0"}]
DUAL = [{**VFS[0], "address6": "fd00::1", "prefix6": 64, "mac": "02:00:00:00:00:01"}]
BARE = {"netdev": "vf2", "address": "10.100.0.3", "prefix": 24, "mac": None, "rdma_device": None}
MORE = [*VFS, {**VFS[0], "netdev": "vf1", "address": "10.100.0.2"}, BARE]
ROUTES = [{"to": "10.100.3.0/24", "via": "10.101.0.2"}, {"to": "10.100.4.0/24", "via": "10.101.0.6"}]
TRANSIT = [{"name": "pf0", "address": "10.101.0.1", "prefix": 30, "routes": ROUTES}]


def link(mtu: int = 9000, *addresses: str, state: str = "UP", flags: tuple[str, ...] = ()) -> dict[str, Any]:
    split = [address.split("/") for address in addresses]
    found = [{"local": local, "prefixlen": int(prefix)} for local, prefix in split]
    return {"mtu": mtu, "operstate": state, "flags": flags, "addr_info": found}


def device(*gids: Gid) -> list[RdmaDevice]:
    return [RdmaDevice("mlx0", None, None, (), (RdmaPort(1, "ACTIVE", None, None, None, 9000, 4096, gids),))]


LOCAL = Gid(0, "fe80::1", "RoCE v2", "vf0", None)
MAPPED = Gid(3, "::ffff:10.100.0.1", "RoCE v2", "vf0", "10.100.0.1")
GOOD = {"pf0": link(), "vf0": link(9000, "10.100.0.1/24")}
POD = {"vf0": "pod a/b"}
FILES = {"a VF of a pod": (PFS, VFS), "both families": ([], DUAL), "transit": (TRANSIT, [])}
LIVE: dict[str, Mapping[str, Any]] = {
    "as planned": {},
    "a driver that reports no state": {"links": {**GOOD, "pf0": link(state="UNKNOWN", flags=("UP", "LOWER_UP"))}},
    "another MTU": {"links": {**GOOD, "pf0": link(1500)}},
    "no address": {"links": {**GOOD, "vf0": link()}},
    "no carrier": {"links": {**GOOD, "pf0": link(state="DOWN")}},
    "no VF": {"links": {"pf0": link()}},
    "a VF in a pod": {"links": {"pf0": link()}, "held": POD},
    "VFs that come later": {"links": {"pf0": link()}, "later": True},
    "nothing": {"links": {}, "later": True},
    "the management link": {"protected": {"pf0": "default route"}, "links": {"pf0": link()}},
    "no address of both families": {"vfs": DUAL, "links": {**GOOD, "vf0": link()}},
    "a GID": {"devices": device(LOCAL, MAPPED)},
    "no GIDs": {"vfs": MORE, "links": {**GOOD, "vf1": GOOD["vf0"], "vf2": GOOD["vf0"]}, "devices": device(LOCAL)},
    "no GID of a pod": {"links": GOOD, "held": POD, "devices": device(LOCAL)},
}


def differences(case: Mapping[str, Any]) -> list[str]:
    desired = netplan.interfaces(PFS, case.get("vfs", VFS), 9000)
    links, held = case.get("links", GOOD), case.get("held", {})
    findings = netplan.check(desired, links, case.get("protected", {}), held, case.get("later", False))
    gids = netplan.gid_deviations(desired, held, case["devices"]) if "devices" in case else []
    return [*map(str, findings), *netplan.deviations(desired, links, held), *gids]


def test_the_files_and_differences_are_as_stored() -> None:
    found: dict[str, list[str]] = {}
    for name, (pfs, vfs) in FILES.items():
        desired = netplan.interfaces(pfs, vfs, 9000)
        text = netplan.render_netplan(desired)
        assert list(yaml.safe_load(text)["network"]["ethernets"]) == netplan.rendered(text)
        sysctls = [f"-{key} = {value}" for key, value in netplan.sysctls(desired).items()]
        assert netplan.render_sysctl(desired).splitlines() == [netplan.HEADER.strip(), *sysctls]
        forward = f"forwarding: {netplan.forwarding(desired)}"
        found[name] = [*map(str, desired), *text.splitlines(), *sysctls, forward]
    found |= {name: differences(case) for name, case in LIVE.items()}
    stored.compare("netplan_interfaces", found)


@pytest.mark.parametrize(
    ("pf", "vf", "said"),
    [
        ({}, {"address": "10.10.10.061"}, r"10\.10\.10\.061"),
        ({}, {"netdev": "en: {dhcp4: true}"}, "is not the name of a network interface"),
        ({}, {"netdev": "a-name-longer-than-ifnamsiz"}, "is not the name of a network interface"),
        ({"routes": [{"to": "default; reboot", "via": "10.112.255.2"}]}, {}, "default; reboot"),
    ],
)
def test_nothing_is_written_for_a_bad_name_or_address(pf: dict[str, Any], vf: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        netplan.interfaces([PFS[0] | pf], [VFS[0] | vf], 9000)
