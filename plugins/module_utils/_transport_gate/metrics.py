# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the metrics of a rank in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._rdma.counters import CONGESTION, ERRORS
from .state import Condition, Rail, Seen

_EVENTS = frozenset((*ERRORS, *CONGESTION))
_DIRECTIONS = {"xmit_bytes": "sent", "rcv_bytes": "received", "tx_bytes": "sent", "rx_bytes": "received"}
_HELP = {
    "proven": (
        "gauge",
        "1 if this rank, or for rank 0 the whole group, has proven its transport since its last start.",
    ),
    "info": ("gauge", "What NCCL's files prove, and the reason of the condition; always 1."),
    "verdict_age_seconds": ("gauge", "Seconds since the condition changed."),
    "rdma_bytes_total": ("counter", "Bytes that a rail moved by RDMA."),
    "tcp_bytes_total": ("counter", "Bytes that a rail's interface moved without RDMA."),
    "rdma_events_total": (
        "counter",
        "Errors, discards, retransmissions and congestion marks that a rail's device counted.",
    ),
    "gid_present": ("gauge", "1 if a rail's device has a RoCE v2 GID of the planned address."),
    "mtu_bytes": ("gauge", "MTU of a rail's interface."),
    "link_changes_total": ("counter", "How often the link of a rail's interface came up or went down."),
    "link_speed_bits_per_second": ("gauge", "Speed of the link of a rail's interface; 0 if it is down or unknown."),
}


def render(
    labels: Mapping[str, str],
    condition: Condition,
    seen: Seen,
    age: float,
    rails: Sequence[Rail],
    counted: Mapping[str, Mapping[str, Mapping[str, int]]],
    links: Mapping[str, Mapping[str, int | None]],
) -> str:
    """Return all metrics of a rank.

    ``counted`` is the result of ``_rdma.counters.parse_counters``, ``links`` that of ``read_link`` by interface.
    """
    judged = seen.judged
    said: dict[str, object] = {
        "class": judged["transport_class"],
        "evidence": judged["evidence"],
        "reason": condition.reason,
    }
    samples: dict[str, list[tuple[Mapping[str, object], float]]] = {name: [] for name in _HELP}
    samples["proven"].append(({}, int(condition.proven)))
    samples["info"].append((said | {"reason": condition.reason, "cause": condition.cause}, 1))
    samples["verdict_age_seconds"].append(({}, round(age, 1)))
    for number, rail in enumerate(rails):
        where: dict[str, object] = {"rail": number, "device": rail.device, "interface": rail.interface}
        for name, value in sorted(counted.get("net", {}).get(rail.interface, {}).items()):
            # The other counters are numbers of packets.
            if name in _DIRECTIONS:
                samples["tcp_bytes_total"].append((where | {"direction": _DIRECTIONS[name]}, value))
        for name, value in sorted(counted.get("rdma", {}).get(rail.device, {}).items()):
            if name in _DIRECTIONS:
                samples["rdma_bytes_total"].append((where | {"direction": _DIRECTIONS[name]}, value))
            elif name in _EVENTS:
                samples["rdma_events_total"].append((where | {"event": name}, value))
        samples["gid_present"].append((where | {"address": rail.address}, int(rail.address in seen.gids)))
        if rail.interface in seen.mtus:
            samples["mtu_bytes"].append((where, seen.mtus[rail.interface]))
        link = links.get(rail.interface, {})
        if (changes := link.get("carrier_changes")) is not None:
            samples["link_changes_total"].append((where, changes))
            # The kernel reports -1 Mb/s, or no value, for a link that is down.
            samples["link_speed_bits_per_second"].append((where, max(link["speed"] or 0, 0) * 1_000_000))
    return "".join(
        metric(f"gb10_transport_{name}", *_HELP[name], labels, values) for name, values in samples.items() if values
    )


def metric(
    name: str, kind: str, text: str, labels: Mapping[str, str], samples: Sequence[tuple[Mapping[str, object], float]]
) -> str:
    """Return one metric with its samples, each of which adds its own labels to the common ones."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for own, value in samples:
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in {**labels, **own}.items())
        lines.append(f"{name}{{{pairs}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
