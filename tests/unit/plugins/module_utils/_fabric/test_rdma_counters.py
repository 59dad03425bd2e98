# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from itertools import product

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import (
    Moved,
    agreement,
    bytes_by_path,
    contradiction,
    delta,
    describe,
    missing,
    moved_bytes,
    moved_since,
    parse_counters,
    payload,
)


def test_ports_are_added_and_words_become_bytes_and_an_unreadable_line_is_skipped() -> None:
    text = (
        "infiniband/mlx5_0/ports/1/counters/port_xmit_data 10\n"
        "infiniband/mlx5_0/ports/2/counters/port_xmit_data 5\n"
        "infiniband/mlx5_0/ports/1/counters/port_rcv_data 3\n"
        "infiniband/mlx5_0/ports/1/counters/link_error_recovery 3\n"
        "infiniband/mlx5_0/ports/1/hw_counters/rnr_nak_retry_err 2\n"
        "infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent 4\n"
        "infiniband/mlx5_0/ports/2/hw_counters/np_cnp_sent 1\n"
        "infiniband/mlx5_0/ports/1/hw_counters/sent_pkts 6\n"
        "infiniband/mlx5_0/ports/1/hw_counters/link_downed -1\n"
        "net/eth0/statistics/rx_bytes 77\n"
        "net/eth0/statistics/tx_bytes N/A\n"
        "nonsense\n"
        "net/e/statistics 5\n"
        "block/sda/stat/x 5\n"
        "net/e/statistics/tx_bytes 8\n"
    )
    device = {"xmit_bytes": 60, "rcv_bytes": 12, "rnr_nak_retry_err": 2, "np_cnp_sent": 5, "sent_pkts": 6}
    assert parse_counters(text) == {
        "rdma": {"mlx5_0": device},
        "net": {"eth0": {"rx_bytes": 77}, "e": {"tx_bytes": 8}},
    }


def test_a_counter_that_decreased_was_reset() -> None:
    moved = delta({"a": {"xmit_bytes": 100, "rcv_bytes": 4}}, {"a": {"xmit_bytes": 30, "rcv_bytes": 9}, "b": {"x": 5}})
    # A counter that the first reading lacks would count since the machine started.
    assert moved == {"a": {"xmit_bytes": 30, "rcv_bytes": 5}, "b": {}}


def test_the_loopback_does_not_count_unless_named_and_a_missing_counter_is_named() -> None:
    moved = {"lo": {"tx_bytes": 10}, "net1": {"tx_bytes": 3, "rx_bytes": 4}}
    assert (moved_bytes(moved), moved_bytes(moved, ["lo", "net2"])) == (7, 10)
    rdma = {"a": {"xmit_bytes": 0, "rcv_bytes": 0}, "b": {"xmit_bytes": 1}, "d": {}}
    net = {"net1": {"tx_bytes": 0, "rx_bytes": 0}, "eth0": {"tx_bytes": 1}, "lo": {}}
    assert missing({"rdma": rdma, "net": net}, {"a", "b", "c"}) == ["b", "c", "eth0"]


@pytest.mark.parametrize(
    ("device", "by_path"),
    [
        ({"xmit_bytes": 7_000_000, "rcv_bytes": 900_000}, (7_900_000, 8_000_000)),
        ({"xmit_bytes": 7_000_000, "rcv_bytes": 900_000, "sent_pkts": 1990}, (7_900_000, 100_000)),
        ({"xmit_bytes": 0, "rcv_bytes": 0, "sent_pkts": 0}, (0, 8_000_000)),
        ({}, (0, 8_000_000)),
    ],
    ids=["a NIC", "soft-RoCE", "TCP beside an idle soft-RoCE", "no counters"],
)
def test_bytes_of_soft_roce_do_not_count_twice(device: dict[str, int], by_path: tuple[int, int]) -> None:
    net = {"net1": {"tx_bytes": 8_000_000}, "lo": {"tx_bytes": 9}}
    assert bytes_by_path({"rdma": {"rocep1s0f0v0": device}, "net": net}, {"rocep1s0f0v0"}) == by_path


def test_every_interface_counts_and_a_download_beside_does_not() -> None:
    exchange = {"tx_bytes": 5_086_000, "rx_bytes": 5_086_000, "tx_packets": 1000, "rx_packets": 1000}
    # 900 MB received, and an acknowledgement of 66 bytes for every second packet of 1,514 bytes.
    download = {"rx_bytes": 900_000_000, "rx_packets": 594_452, "tx_bytes": 297_226 * 66, "tx_packets": 297_226}
    net = {"net1": exchange, "eth0": download, "lo": exchange}
    assert payload(net, ["eth0"], True) == 0
    assert payload({"e": {"rx_bytes": 99}}, ["e"], False) == 99
    assert bytes_by_path({"rdma": {}, "net": net}, (), True) == (0, 2 * 5_000_000)
    # Sent through one interface and received through another.
    split = {"net1": exchange | {"rx_bytes": 0, "rx_packets": 0}, "eth0": exchange | {"tx_bytes": 0, "tx_packets": 0}}
    assert bytes_by_path({"rdma": {}, "net": split}, (), True) == (0, 2 * 5_000_000)
    assert bytes_by_path({"rdma": {}, "net": {"eth0": download}}, ())[1] == 900_000_000 - 594_452 * 86


# What devices moved, with errors and without, of RDMA devices and of interfaces
MOVED: list[dict[str, dict[str, int]]] = [
    {},
    {"a": {"xmit_bytes": 0, "rcv_bytes": 0}},
    {"a": {"rcv_bytes": 1_500_000}},
    {"a": {"link_downed": 1}},
    {"e": {"tx_bytes": 1_000_000, "rx_bytes": 2_000_000}},
    {"b": {"xmit_bytes": 3_000_000}, "a": {"xmit_bytes": 1_000_000}},
    {"a": {"local_ack_timeout_err": 2, "out_of_sequence": 3}},
]


def test_what_moved_and_what_contradicts_a_verdict_is_as_stored() -> None:
    """The limit belongs to what proves."""
    against = [
        f"{verdict}, {rdma} by RDMA, {tcp} by TCP: {contradiction(verdict, rdma, tcp, 1000)}".removesuffix(": ")
        for verdict, rdma, tcp in product(("rdma", "tcp", "other"), (0, 999, 1000), (0, 999, 1000))
    ]
    stored.compare(
        "rdma_counters", {"moved": [f"{each}: {describe(each)}" for each in MOVED], "contradictions": against}
    )


def reading(**rdma: int) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """Return one reading of sources with a device each, which sent these bytes, and an interface that sent none."""
    return {
        name: {"rdma": {"d": {"xmit_bytes": sent, "rcv_bytes": 0}}, "net": {"e": {"tx_bytes": 7, "rx_bytes": 7}}}
        for name, sent in rdma.items()
    }


def test_all_sources_count_and_with_rdma_each_must_have_moved_some() -> None:
    both = moved_since(reading(one=1, two=1), reading(one=3001, two=2001))
    assert (both.rdma_bytes, both.tcp_bytes) == (5000, 0)
    assert both.msg == "one: d sent 0.0 MB, received 0.0 MB; two: d sent 0.0 MB, received 0.0 MB"
    assert [agreement(*case) for case in (("rdma", both, 5000), ("tcp", Moved(both.sources, 0, 9000, ""), 1000))] == [
        (True, ""),
        (True, ""),
    ]
    assert (agreement("tcp", both, 5000)[0], agreement("rdma", both, 5001)[0]) == (False, None)
    silent = moved_since(reading(one=1, two=1), reading(one=9001, two=1))
    agrees, why = agreement("rdma", silent, 1000)
    assert (agrees, "the RDMA devices of two moved 0 bytes" in why) == (False, True)
    assert agreement("tcp", Moved({"one": {"rdma": {}, "net": {}}}, 0, 9000, ""), 1000) == (True, "")


def test_only_named_devices_and_interfaces_count() -> None:
    def read(d: int, f: int, e: int, g: int) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
        rdma, net = {"d": {"xmit_bytes": d}, "f": {"xmit_bytes": f}}, {"e": {"rx_bytes": e}, "g": {"rx_bytes": g}}
        return {"x": {"rdma": rdma, "net": net}}

    before, after = read(0, 0, 0, 0), read(5, 9, 2, 4)
    found = moved_since(before, after, {"x": ["d"]}, ["e"])
    assert (found.rdma_bytes, found.tcp_bytes) == (5, 2)
    assert moved_since(before, after).rdma_bytes == 14
    assert moved_since({}, after).rdma_bytes == 0
