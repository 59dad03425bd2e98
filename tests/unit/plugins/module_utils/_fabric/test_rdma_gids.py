# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from pathlib import Path

import pytest
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

PLANNED = {"rdma_device": "rocep1s0f0v0", "address": "10.100.0.1"}


@pytest.mark.parametrize(
    ("mtu", "payload"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (68, 0)]
)
def test_the_payload_follows_the_netdev_mtu(mtu: int, payload: int) -> None:
    assert ib_mtu(mtu) == payload


@pytest.mark.parametrize(
    ("text", "rate"),
    [("200 Gb/sec (4X HDR)", 200.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("", None), (None, None), ("unknown", None)],
)
def test_rates(text: str | None, rate: float | None) -> None:
    assert parse_rate(text) == rate


def test_states() -> None:
    assert parse_state("4: ACTIVE") == "ACTIVE"
    assert parse_state(None) is None


def test_mlx5_lists_each_address_twice(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    (device,) = read_devices(str(tmp_path))
    assert (device.name, device.netdevs, device.firmware) == ("rocep1s0f0v0", ("enp1s0f0v0",), "28.45.4028")
    (port,) = device.ports
    assert (port.state, port.phys_state, port.rate_gbps, port.link_layer) == ("ACTIVE", "LinkUp", 200.0, "Ethernet")
    assert (port.mtu, port.active_mtu) == (9000, 4096)
    assert [(g.index, g.type, g.ndev, g.ipv4) for g in port.gids] == [
        (0, "IB/RoCE v1", "enp1s0f0v0", None),
        (1, "RoCE v2", "enp1s0f0v0", None),
        (2, "IB/RoCE v1", "enp1s0f0v0", "10.100.0.1"),
        (3, "RoCE v2", "enp1s0f0v0", "10.100.0.1"),
    ]


def test_rxe_has_version_two_only_and_no_pci_function(tmp_path: Path) -> None:
    rxe(tmp_path)
    (device,) = read_devices(str(tmp_path))
    assert device.netdevs == ("enp1s0v0",)
    assert device.ports[0].rate_gbps == 2.5
    results, findings = check_expected([device], [{"rdma_device": "rxe0", "address": "192.168.100.11"}])
    assert (results[0].index, findings) == (1, [])


def test_a_planned_address_with_its_gid_is_found(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    results, findings = check_expected(read_devices(str(tmp_path)), [PLANNED], 9000)
    assert findings == []
    assert (results[0].found, results[0].index) == (True, 3)


def test_an_ipv6_address_is_its_own_gid(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, address="fd00:100::1")
    results, findings = check_expected(read_devices(str(tmp_path)), [{**PLANNED, "address": "fd00:100::1"}])
    assert (results[0].index, findings) == (3, [])


def test_a_vf_without_ipv4_is_named_with_what_it_has(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, address=None)
    results, findings = check_expected(read_devices(str(tmp_path)), [PLANNED])
    assert not results[0].found
    assert [f.rule for f in findings] == ["gid.absent"]
    assert "Network is unreachable" in findings[0].reason
    assert "fe80:" in findings[0].reason


def test_another_address_is_not_enough(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, address="10.100.0.2")
    assert [f.rule for f in check_expected(read_devices(str(tmp_path)), [PLANNED])[1]] == ["gid.absent"]


def test_version_one_is_not_enough(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    (tmp_path / "devices/0000:01:00.2/infiniband/rocep1s0f0v0/ports/1/gid_attrs/types/3").write_text("IB/RoCE v1\n")
    results, findings = check_expected(read_devices(str(tmp_path)), [PLANNED])
    assert results[0].index is None
    assert [f.rule for f in findings] == ["gid.type"]


def test_a_missing_device_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    results, findings = check_expected(
        read_devices(str(tmp_path)), [{"rdma_device": "rocep1s0f0v7", "address": "10.0.0.1"}]
    )
    assert not results[0].found
    assert [f.rule for f in findings] == ["gid.device_missing"]
    assert "rocep1s0f0v0" in findings[0].reason


def test_a_host_without_rdma_has_no_device_and_fails(tmp_path: Path) -> None:
    assert read_devices(str(tmp_path)) == []
    assert [f.rule for f in check_expected([], [PLANNED])[1]] == ["gid.device_missing"]


def test_a_dead_port_and_a_small_mtu_are_found_together(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, mtu=1500, state="1: DOWN")
    findings = check_expected(read_devices(str(tmp_path)), [PLANNED], 9000)[1]
    assert {f.rule for f in findings} == {"gid.port_state", "gid.mtu"}
    assert any("1024" in f.reason for f in findings)


def test_a_vf_of_the_plan_can_be_given_as_it_is(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    vf = {**PLANNED, "address6": "fd00:100::1", "vf_index": 0, "mac": "02:95:2a:00:01:00"}
    results, findings = check_expected(read_devices(str(tmp_path)), [vf])
    assert [(result.address, result.index) for result in results] == [("10.100.0.1", 3), ("fd00:100::1", None)]
    assert [f.rule for f in findings] == ["gid.absent"]
    assert [f.rule for f in check_expected(read_devices(str(tmp_path)), [{**vf, "address6": None}])[1]] == []


def test_an_expectation_without_an_address_fails(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    assert [f.rule for f in check_expected(read_devices(str(tmp_path)), [{"rdma_device": "rocep1s0f0v0"}])[1]] == [
        "gid.address"
    ]


def test_an_address_with_a_leading_zero_is_refused(tmp_path: Path) -> None:
    mlx5_vf(tmp_path)
    findings = check_expected(read_devices(str(tmp_path)), [{**PLANNED, "address": "10.100.0.01"}])[1]
    assert [f.rule for f in findings] == ["gid.address"]


def port_of(*gids: Gid, number: int = 1, state: str | None = "ACTIVE", mtu: int | None = 9000) -> RdmaPort:
    return RdmaPort(number, state, "LinkUp", 200.0, "Ethernet", mtu, 4096, gids)


def v2(index: int, ipv4: str, kind: str = "RoCE v2") -> Gid:
    return Gid(index, f"::ffff:{ipv4}", kind, "e", ipv4)


@pytest.mark.parametrize(
    ("ports", "mtu", "index", "rules"),
    [
        ([port_of(v2(3, "10.0.0.1"))], 9000, 3, []),
        ([port_of(v2(2, "10.0.0.1", "IB/RoCE v1"), v2(3, "10.0.0.1"), v2(5, "10.0.0.1"))], 9000, 3, []),
        ([port_of(v2(1, "10.0.0.2")), port_of(v2(4, "10.0.0.1"), number=2)], None, 4, []),
        ([port_of(v2(3, "10.0.0.1"), mtu=8999)], 9000, 3, ["gid.mtu"]),
        ([port_of(v2(3, "10.0.0.1"), mtu=9001)], 9000, 3, []),
        ([port_of(v2(3, "10.0.0.1"), mtu=None)], 9000, 3, []),
        ([port_of(v2(3, "10.0.0.1"), mtu=1)], None, 3, []),
        ([port_of(v2(3, "10.0.0.1"), state=None)], 9000, 3, ["gid.port_state"]),
        ([port_of(v2(0, "10.0.0.1"))], 9000, 0, []),
        ([port_of(v2(3, "10.0.0.1"), state="INIT"), port_of(number=2, mtu=10)], 20, 3, ["gid.port_state", "gid.mtu"]),
        ([port_of()], 9000, None, ["gid.absent"]),
        ([port_of(v2(2, "10.0.0.1", "IB/RoCE v1"))], 9000, None, ["gid.type"]),
    ],
)
def test_an_address_is_judged_by_all_gids_and_ports(
    ports: list[RdmaPort], mtu: int | None, index: int | None, rules: list[str]
) -> None:
    device = RdmaDevice("d", None, None, ("e",), tuple(ports))
    (result,), findings = check_expected([device], [{"rdma_device": "d", "address": "10.0.0.1"}], mtu)
    assert (result.index, result.found, result.rdma_device, result.address) == (
        index,
        index is not None,
        "d",
        "10.0.0.1",
    )
    assert [(found.severity, found.rule) for found in findings] == [("error", rule) for rule in rules]


def test_a_device_has_all_its_interfaces_and_the_mtu_of_the_first_that_tells_one(tmp_path: Path) -> None:
    place = tmp_path / "class/infiniband/a"
    for name in ("net1", "net0", "net2"):
        (place / "device/net" / name).mkdir(parents=True)
    for name, mtu in (("net1", 1500), ("net2", 9000)):
        write(tmp_path / "class/net" / name / "mtu", mtu)
    write(place / "ports/1/state", "4: ACTIVE")
    (device,) = read_devices(str(tmp_path))
    assert (device.netdevs, device.ports[0].mtu) == (("net0", "net1", "net2"), 1500)
    # The interface of a GID comes first.
    write(place / "ports/1/gids/0", "fe80::1")
    write(place / "ports/1/gid_attrs/ndevs/0", "net2")
    assert read_devices(str(tmp_path))[0].ports[0].mtu == 9000


def test_an_absent_address_names_all_that_there_are() -> None:
    ports = (port_of(v2(3, "10.0.0.2"), Gid(4, "fe80::1", "RoCE v2", "e", None)), port_of(v2(3, "10.0.0.3"), number=2))
    expect = [{"rdma_device": "d", "address": "10.0.0.1"}, {"rdma_device": "none", "address": "10.0.0.1"}]
    findings = check_expected([RdmaDevice("d", None, None, (), ports), RdmaDevice("e", None, None, (), ())], expect)[1]
    assert ["10.0.0.2, fe80::1, 10.0.0.3" in findings[0].reason, "d, e" in findings[1].reason] == [True, True]
    empty = RdmaDevice("d", None, None, (), (port_of(),))
    assert "(GIDs: none)" in check_expected([empty], expect[:1])[1][0].reason


def test_ports_and_gids_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for device in ("b", "a"):
        for port in ("10", "2", "x"):
            place = tmp_path / "class/infiniband" / device / "ports" / port
            for index in ("11", "9", "y"):
                (place / "gids").mkdir(parents=True, exist_ok=True)
                (place / "gids" / index).write_text(f"fe80::{port.removeprefix('x') or 1}\n")
            (place / "gids/3").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
            (place / "gids/4").write_text("no GID\n")
            write(place / "gid_attrs/ndevs/9", "")
    (tmp_path / "class/infiniband/a/fw_ver").write_text("1.2\n")
    (tmp_path / "class/infiniband/a/hca_type").write_text("MT4129\n")
    found = read_devices(str(tmp_path))
    assert [(device.name, device.firmware, device.hca_type) for device in found] == [
        ("a", "1.2", "MT4129"),
        ("b", None, None),
    ]
    assert [port.port for port in found[0].ports] == [2, 10]
    assert [(gid.index, gid.ndev) for gid in found[0].ports[0].gids] == [(9, None), (11, None)]
    first = found[0].ports[0]
    assert (first.state, first.rate_gbps, first.mtu, first.active_mtu) == (None, None, None, None)
