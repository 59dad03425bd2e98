# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._rdma.gids import (
    check_expected,
    ib_mtu,
    parse_rate,
    parse_state,
    read_devices,
)
from sysfs_samples import mlx5_vf, rxe

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
