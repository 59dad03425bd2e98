# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the RDMA devices that are read, and what is said about their GIDs, with a stored text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import (
    Gid,
    RdmaDevice,
    RdmaPort,
    check_expected,
    ib_mtu,
    parse_rate,
    parse_state,
    read_devices,
)
from sysfs_samples import mlx5_vf, rxe, write

PLANNED: dict[str, Any] = {"rdma_device": "rocep1s0f0v0", "address": "10.100.0.1"}
VF = {**PLANNED, "address6": "fd00:100::1", "vf_index": 0, "mac": "02:95:2a:00:01:00"}


@pytest.mark.parametrize(
    ("mtu", "payload"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (68, 0)]
)
def test_the_payload_follows_the_netdev_mtu(mtu: int, payload: int) -> None:
    assert ib_mtu(mtu) == payload


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200 Gb/sec (4X HDR)", 200.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), (None, None), ("unknown", None)],
)
def test_rates_and_states(text: str | None, rate: float | None) -> None:
    assert parse_rate(text) == rate
    assert (parse_state("4: ACTIVE"), parse_state(None)) == ("ACTIVE", None)


def version_one(root: Path) -> None:
    mlx5_vf(root)
    write(root / "devices/0000:01:00.2/infiniband/rocep1s0f0v0/ports/1/gid_attrs/types/3", "IB/RoCE v1")


def three_interfaces(root: Path, of_gid: str = "") -> None:
    """Make a device of which the first interface tells no MTU."""
    place = root / "class/infiniband/a"
    for name, mtu in (("net1", 1500), ("net0", None), ("net2", 9000)):
        (place / "device/net" / name).mkdir(parents=True)
        if mtu:
            write(root / "class/net" / name / "mtu", mtu)
    write(place / "ports/1/state", "4: ACTIVE")
    if of_gid:
        write(place / "ports/1/gids/0", "fe80::1")
        write(place / "ports/1/gid_attrs/ndevs/0", of_gid)


def unordered(root: Path) -> None:
    for device in ("b", "a"):
        for port in ("10", "2", "x"):
            place = root / "class/infiniband" / device / "ports" / port
            for index, text in (("11", "fe80::2"), ("9", "fe80::1"), ("y", "fe80::3"), ("4", "no GID"), ("3", "::")):
                write(place / "gids" / index, text)
            write(place / "gid_attrs/ndevs/9", "")
    write(root / "class/infiniband/a/fw_ver", "1.2")
    write(root / "class/infiniband/a/hca_type", "MT4129")


# {host: how its sysfs is made, what is expected there}
HOSTS: dict[str, tuple[Callable[[Path], None], list[dict[str, Any]]]] = {
    "mlx5": (mlx5_vf, [PLANNED, VF, {**VF, "address6": None}]),
    "mlx5 with IPv6": (lambda root: mlx5_vf(root, address="fd00:100::1"), [{**PLANNED, "address": "fd00:100::1"}]),
    "mlx5 without an address": (lambda root: mlx5_vf(root, address=None), [PLANNED]),
    "mlx5 with another address": (lambda root: mlx5_vf(root, address="10.100.0.2"), [PLANNED]),
    "mlx5 with RoCE v1 only": (version_one, [PLANNED]),
    "mlx5 that is down, with a small MTU": (lambda root: mlx5_vf(root, mtu=1500, state="1: DOWN"), [PLANNED]),
    "other expectations": (
        mlx5_vf,
        [
            {**PLANNED, "rdma_device": "rocep1s0f0v7"},
            {"rdma_device": "rocep1s0f0v0"},
            {**PLANNED, "address": "10.0.0.01"},
        ],
    ),
    "rxe": (rxe, [{"rdma_device": "rxe0", "address": "192.168.100.11"}]),
    "no RDMA": (lambda root: None, [PLANNED]),
    "three interfaces": (three_interfaces, []),
    "three interfaces, one of a GID": (lambda root: three_interfaces(root, "net2"), []),
    "unordered": (unordered, []),
}


def port(*gids: Gid, number: int = 1, state: str | None = "ACTIVE", mtu: int | None = 9000) -> RdmaPort:
    return RdmaPort(number, state, "LinkUp", 200.0, "Ethernet", mtu, 4096, gids)


def v2(index: int, ipv4: str = "10.0.0.1", kind: str = "RoCE v2") -> Gid:
    return Gid(index, f"::ffff:{ipv4}", kind, "e", ipv4)


LOCAL = Gid(4, "fe80::1", "RoCE v2", "e", None)
# {case: the ports of a device, the least MTU}
PORTS: dict[str, tuple[list[RdmaPort], int | None]] = {
    "the first GID of several": ([port(v2(2, kind="IB/RoCE v1"), v2(3), v2(5))], 9000),
    "on the second port": ([port(v2(1, "10.0.0.2")), port(v2(4), number=2)], None),
    "GID 0": ([port(v2(0))], 9000),
    "a small MTU": ([port(v2(3), mtu=8999)], 9000),
    "a large MTU": ([port(v2(3), mtu=9001)], 9000),
    "no MTU": ([port(v2(3), mtu=None)], 9000),
    "any MTU": ([port(v2(3), mtu=1)], None),
    "no state": ([port(v2(3), state=None)], 9000),
    "two bad ports": ([port(v2(3), state="INIT"), port(number=2, mtu=10)], 20),
    "no GID": ([port()], 9000),
    "other GIDs": ([port(v2(3, "10.0.0.2"), LOCAL), port(v2(3, "10.0.0.3"), number=2)], None),
    "only version 1": ([port(v2(2, kind="IB/RoCE v1"))], 9000),
}


def told(devices: list[RdmaDevice], expect: list[dict[str, Any]], mtu: int | None) -> list[str]:
    results, findings = check_expected(devices, expect, mtu)
    return [*map(str, results), *map(str, findings)]


def test_devices_and_findings_are_as_stored(tmp_path: Path) -> None:
    found = {}
    for name, (make, expect) in HOSTS.items():
        make(tmp_path / name)
        devices = read_devices(str(tmp_path / name))
        said = [f"{one.name} {one.firmware} {one.hca_type} {one.netdevs}" for one in devices]
        for every in (every for one in devices for every in one.ports):
            gids = [f"  {gid.index} {gid.gid} {gid.type} {gid.ndev} {gid.ipv4}" for gid in every.gids]
            plain = (every.state, every.phys_state, every.rate_gbps, every.link_layer, every.mtu, every.active_mtu)
            said += [f"  port {every.port}: {', '.join(map(str, plain))}", *gids]
        found[name] = [*said, *(line for one in expect for line in told(devices, [one], 9000))]
    for name, (ports, mtu) in PORTS.items():
        devices = [RdmaDevice("d", None, None, ("e",), tuple(ports)), RdmaDevice("e", None, None, (), ())]
        found[name] = told(devices, [{"rdma_device": "d", "address": "10.0.0.1"}], mtu)
    found["no such device"] = told(devices, [{"rdma_device": "none", "address": "10.0.0.1"}], None)
    stored.compare("rdma_gids", found)
