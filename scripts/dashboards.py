#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the dashboards of role monitoring as JSON. With --check, only report which files are out of date."""

import string
from collections.abc import Mapping
from typing import Any

import _generated
from _collection import ROOT, run
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)

DIRECTORY = ROOT / "roles" / "monitoring" / "files" / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE = "[$__rate_interval]"
GROUP = '{group=~"$group"}'
HOST = '{instance=~"$host"}'
RDMA, TCP = 'class="rdma"', 'class=~"tcp|mixed"'
RUNBOOK = "https://github.com/gb10/cluster/blob/main/docs/runbook.md"

Panel = tuple[str, str, dict[str, str]]


def _quantiles(metric: str) -> dict[str, str]:
    buckets = f"sum by (group, le) (rate(sglang:{metric}_bucket{GROUP}{RATE}))"
    return {f"{{{{group}}}} p{n}": f"histogram_quantile(0.{n}, {buckets})" for n in (50, 95, 99)}


def _moved(metric: str) -> dict[str, str]:
    return {
        "{{group}} rank {{rank}} rail {{rail}} {{direction}}": f"rate(gb10_transport_{metric}_bytes_total{GROUP}{RATE})"
    }


def _state() -> str:
    """Return a query for the state of each rank; its values are those of `ROCE`."""

    def rank(what: str) -> str:
        return f"max by (namespace, group, rank) ({what})"

    proven, rdma, tcp = map(rank, (f"gb10_transport_proven{GROUP}", _info(RDMA), _info(TCP)))
    # A pod that is replaced has no series for a moment, and its rank must not vanish from the answer meanwhile.
    lately = rank(f"max_over_time(gb10_transport_proven{GROUP}[5m])")
    return f"({proven} == 1 and {rdma}) * 2 or {tcp} * 0 or {lately} * 0 + 1"


def _info(matcher: str = "") -> str:
    return f"gb10_transport_info{GROUP[:-1]}{', ' * bool(matcher)}{matcher}}}"


def _reasons() -> dict[str, str]:
    # PromQL has no operator for bits: bit n is set if the value divided by 2^n is odd. The bits are those of NVML.
    bits = {"power limit": 2, "hardware slowdown": 3, "software thermal": 5, "hardware thermal": 6, "power brake": 7}
    return {
        f"{{{{Hostname}}}} GPU {{{{gpu}}}} {reason}": f"floor(DCGM_FI_DEV_CLOCKS_EVENT_REASONS / {2**bit}) % 2"
        for reason, bit in bits.items()
    }


def _restarts() -> str:
    # As in alert Gb10RankRestarting: restarts by the kubelet, and pods that replaced one of the same revision.
    pods = 'group by (namespace, pod, revision, uid) (last_over_time(up{rank!="", revision!=""}[30m]))'
    return (
        'sum by (namespace, pod) (increase(kube_pod_container_status_restarts_total{container="sglang"}[30m])'
        f" or count by (namespace, pod, revision) ({pods}) - 1)"
    )


DESCRIPTIONS = {
    "All RoCE now?": (
        "yes: NCCL proves RDMA on every rank. NO: TCP: at least one rank of a group moves data by TCP. not proven: a "
        "rank starts, or a link, a GID or an MTU of it is wrong; the timelines below name the rank and the reason."
    ),
    "Transport of every rank": (
        "RoCE: proven by NCCL's files of this start. For rank 0 it is the state of the whole group."
    ),
    "Class, evidence and reason": (
        "A row begins when its reason begins. Its color is the class that NCCL's files prove."
    ),
    "Reasons for a lower GPU clock": (
        "DCGM's exporter reports no DCGM_FI_DEV_CLOCKS_EVENT_REASONS of a GB10, so the panel "
        "is empty there: a GPU that is used much at a low clock is throttled (alert Gb10GpuThrottled)."
    ),
    "Restarts of ranks within half an hour": "Restarts by the kubelet, and pods that replaced one of their revision.",
}

# Text and color of each value. A panel with such states is a tile or a timeline, not a line.
States = Mapping[int, tuple[str, str]]
ROCE: States = {2: ("RoCE", "green"), 1: ("not proven", "orange"), 0: ("TCP", "red")}
STATES: Mapping[str, States] = {
    "All RoCE now?": {2: ("yes", "green"), 1: ("not proven", "orange"), 0: ("NO: TCP", "red")},
    "Transport of every rank": ROCE,
    "Class, evidence and reason": {2: ("rdma", "green"), 1: ("unknown", "orange"), 0: ("tcp", "red")},
    "GID of the planned address": {1: ("present", "green"), 0: ("missing", "red")},
    "Answers of the server": {1: ("noise", "red"), 0: ("no finding", "green")},
    "Memory, load and temperature of the nodes": {2: ("stop", "red"), 1: ("warning", "orange"), 0: ("good", "green")},
    "Reasons for a lower GPU clock": {1: ("slowed", "orange"), 0: ("no", "green")},
}
TILES = ("All RoCE now?",)
# Where an alert fires: below (True) or above this value of the panel.
LIMITS: Mapping[str, tuple[float, bool]] = {
    "Memory available": (0.03, True),
    "Time stalled for memory": (0.1, False),
    "GPU clock": (1e9, True),
    "Disk used": (0.92, False),
    "Restarts of ranks within half an hour": (1.5, False),
}
FIRST = (
    ("All RoCE now?", "short", {"all ranks": f"min({_state()})"}),
    ("Transport of every rank", "short", {"{{group}} rank {{rank}}": _state()}),
)

# Title, unit, and queries by legend.
DASHBOARDS: dict[str, tuple[str, str, list[Panel]]] = {
    "group": (
        "gb10: serving groups",
        "label_values(sglang:num_running_reqs, group)",
        [
            *FIRST,
            ("Time to the first token", "s", _quantiles("time_to_first_token_seconds")),
            ("Time between tokens", "s", _quantiles("inter_token_latency_seconds")),
            ("Throughput", "suffix: tok/s", {"{{group}}": f"sum by (group) (sglang:gen_throughput{GROUP})"}),
            ("Accept length", "suffix: tokens", {"{{group}}": f"max by (group) (sglang:spec_accept_length{GROUP})"}),
            (
                "Requests",
                "short",
                {
                    "{{group}} running": f"sum by (group) (sglang:num_running_reqs{GROUP})",
                    "{{group}} queued": f"sum by (group) (sglang:num_queue_reqs{GROUP})",
                },
            ),
            (
                "KV cache: use, and hits of prefixes",
                "percentunit",
                {
                    "{{group}} used": f"max by (group) (sglang:token_usage{GROUP})",
                    "{{group}} hits": f"max by (group) (sglang:cache_hit_rate{GROUP})",
                },
            ),
            ("Answers of the server", "short", {"{{group}}": f"max by (group) (gb10_answers_garbage{GROUP})"}),
            (
                "Memory, load and temperature of the nodes",
                "short",
                {
                    f"{{{{group}}}} rank {{{{rank}}}} {what}": f"max by (group, rank) ({metric}{GROUP})"
                    for what, metric in (
                        ("memory", "gb10_memory_step"),
                        ("load ended", "2 * gb10_load_ended"),
                        ("hot", "gb10_health_hot"),
                    )
                },
            ),
        ],
    ),
    "transport": (
        "gb10: transport of the ranks",
        "label_values(gb10_transport_proven, group)",
        [
            *FIRST,
            (
                "Class, evidence and reason",
                "short",
                {
                    "{{group}} rank {{rank}}: {{class}}, {{evidence}}, {{reason}}": (
                        f"{_info(RDMA)} * 2 or {_info(TCP)} * 0 or {_info()}"
                    )
                },
            ),
            (
                "GID of the planned address",
                "short",
                {"{{group}} rank {{rank}} rail {{rail}} {{address}}": f"gb10_transport_gid_present{GROUP}"},
            ),
            ("RDMA by rail", "Bps", _moved("rdma")),
            ("TCP by rail", "Bps", _moved("tcp")),
            (
                "Errors, retransmissions and congestion",
                "short",
                {
                    "{{group}} rank {{rank}} {{device}} {{event}}": (
                        f"increase(gb10_transport_rdma_events_total{GROUP}{RATE})"
                    )
                },
            ),
            (
                "Changes of the links",
                "short",
                {
                    "{{group}} rank {{rank}} rail {{rail}}": (
                        f"increase(gb10_transport_link_changes_total{GROUP}{RATE})"
                    )
                },
            ),
            (
                "Speed of the links",
                "bps",
                {"{{group}} rank {{rank}} rail {{rail}}": f"gb10_transport_link_speed_bits_per_second{GROUP}"},
            ),
            ("MTU", "bytes", {"{{group}} rank {{rank}} rail {{rail}}": f"gb10_transport_mtu_bytes{GROUP}"}),
            ("Age of the verdict", "s", {"{{group}} rank {{rank}}": f"gb10_transport_verdict_age_seconds{GROUP}"}),
        ],
    ),
    "node": (
        "gb10: hosts",
        "label_values(node_memory_MemTotal_bytes, instance)",
        [
            (
                "Memory available",
                "percentunit",
                {"{{instance}}": f"node_memory_MemAvailable_bytes{HOST} / node_memory_MemTotal_bytes{HOST}"},
            ),
            (
                "Time stalled for memory",
                "percentunit",
                {"{{instance}}": f"rate(node_pressure_memory_stalled_seconds_total{HOST}{RATE})"},
            ),
            ("GPU temperature", "celsius", {"{{Hostname}} GPU {{gpu}}": "DCGM_FI_DEV_GPU_TEMP"}),
            ("GPU use", "percentunit", {"{{Hostname}} GPU {{gpu}}": "DCGM_FI_DEV_GPU_UTIL / 100"}),
            ("GPU clock", "hertz", {"{{Hostname}} GPU {{gpu}}": "1e6 * DCGM_FI_DEV_SM_CLOCK"}),
            ("GPU power", "watt", {"{{Hostname}} GPU {{gpu}}": "DCGM_FI_DEV_POWER_USAGE"}),
            ("Reasons for a lower GPU clock", "short", _reasons()),
            (
                "Disk used",
                "percentunit",
                {
                    # By device: the kubelet mounts parts of the same file system again for its pods.
                    "{{instance}} {{device}}": (
                        '1 - min by (instance, device) (node_filesystem_avail_bytes{instance=~"$host", '
                        'fstype=~"ext4|xfs|btrfs|zfs"} / node_filesystem_size_bytes)'
                    )
                },
            ),
            (
                "Links that went down",
                "short",
                {
                    "{{instance}} {{device}}": (
                        'increase(node_network_carrier_down_changes_total{instance=~"$host", device=~"en.*|eth.*|ib.*"}'
                        f"{RATE})"
                    )
                },
            ),
            ("Restarts of ranks within half an hour", "short", {"{{pod}}": _restarts()}),
        ],
    ),
}


def _legend() -> common.VizLegendOptions:
    # The builder hides the legend unless it is asked for.
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    return legend.placement(LegendPlacement.BOTTOM)


def _mapped(states: States) -> ValueMap:
    return ValueMap({str(n): ValueMappingResult(text, color) for n, (text, color) in states.items()})


def _steps(limit: float, below: bool) -> dashboard.ThresholdsConfig:
    first, then = ("red", "green") if below else ("green", "red")
    return dashboard.ThresholdsConfig().steps([Threshold(None, first), Threshold(limit, then)])


def _tile(title: str) -> stat.Panel:
    panel = stat.Panel().mappings([_mapped(STATES[title])]).color_mode(BigValueColorMode.BACKGROUND_SOLID)
    panel = panel.graph_mode(BigValueGraphMode.NONE).text_mode(BigValueTextMode.VALUE).no_value("no rank reports")
    return panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).span(4).height(8)


def _timeline(title: str) -> statetimeline.Panel:
    panel = statetimeline.Panel().mappings([_mapped(STATES[title])]).merge_values(True)
    panel = panel.show_value(VisibilityMode.AUTO).legend(_legend())
    return panel.span(20 if title == FIRST[1][0] else 12).height(8)


def _lines(title: str, unit: str) -> timeseries.Panel:
    panel = timeseries.Panel().span(12).height(8).min(0).legend(_legend())
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if unit == "percentunit":
        panel = panel.max(1)
    if title in LIMITS:
        style = common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
        panel = panel.thresholds(_steps(*LIMITS[title])).thresholds_style(style)
    return panel


def _panel(title: str, unit: str, queries: dict[str, str]) -> Any:
    kind = _tile(title) if title in TILES else _timeline(title) if title in STATES else _lines(title, unit)
    panel: Any = kind.title(title).unit(unit).datasource(SOURCE)
    if title in DESCRIPTIONS:
        panel = panel.description(DESCRIPTIONS[title])
    for letter, (shown, expression) in zip(string.ascii_uppercase, queries.items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(shown)
        # A state of an hour ago is no answer to "now".
        query = query.instant() if title in TILES else query
        panel = panel.with_target(query.datasource(SOURCE))
    return panel


def _links() -> list[Any]:
    others = dashboard.DashboardLink("gb10").type(DashboardLinkType.DASHBOARDS).tags(["gb10"])
    runbook = dashboard.DashboardLink("Runbook").type(DashboardLinkType.LINK).url(RUNBOOK).target_blank(True)
    return [others.keep_time(True).include_vars(True), runbook.icon("doc")]


def render(name: str) -> str:
    title, values, panels = DASHBOARDS[name]
    variable = "host" if name == "node" else "group"
    chosen = dashboard.QueryVariable(variable).datasource(SOURCE).query(values).multi(True).include_all(True)
    built = (
        dashboard.Dashboard(title).uid(f"gb10-{name}").tags(["gb10"]).refresh("30s").time("now-3h", "now").readonly()
    )
    built = built.links(_links()).with_variable(
        dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus")
    )
    chosen = chosen.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    built = built.with_variable(chosen.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).label(variable))
    for panel in panels:
        built = built.with_panel(_panel(*panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the files; with --check, return 1 if one is out of date."""
    return _generated.main(__doc__, lambda: {DIRECTORY / f"{name}.json": render(name) for name in DASHBOARDS}, argv)


if __name__ == "__main__":
    run(main)
