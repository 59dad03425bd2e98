#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the dashboards of role monitoring as JSON. With --check, only report which files are out of date."""

from __future__ import annotations

import string

import _generated
from _collection import ROOT, run
from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableOption, VariableRefresh

DIRECTORY = ROOT / "roles" / "monitoring" / "files" / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE = "[$__rate_interval]"
GROUP = '{group=~"$group"}'
HOST = '{instance=~"$host"}'

Panel = tuple[str, str, dict[str, str]]


def _quantiles(metric: str) -> dict[str, str]:
    buckets = f"sum by (group, le) (rate(sglang:{metric}_bucket{GROUP}{RATE}))"
    return {f"{{{{group}}}} p{n}": f"histogram_quantile(0.{n}, {buckets})" for n in (50, 99)}


def _moved(metric: str) -> dict[str, str]:
    return {
        "{{group}} rank {{rank}} rail {{rail}} {{direction}}": f"rate(gb10_transport_{metric}_bytes_total{GROUP}{RATE})"
    }


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
    "Class and evidence": "The line is always 1; its name is the class that was found, what proves it, and the reason.",
    "Reasons for a lower GPU clock": (
        "1 while the reason holds. DCGM's exporter reports no DCGM_FI_DEV_CLOCKS_EVENT_REASONS of a GB10, so the panel "
        "is empty there: a GPU that is used much at a low clock is throttled (alert Gb10GpuThrottled)."
    ),
    "Restarts of ranks within half an hour": "Restarts by the kubelet, and pods that replaced one of their revision.",
}

# Title, unit, and queries by legend.
DASHBOARDS: dict[str, tuple[str, str, list[Panel]]] = {
    "group": (
        "gb10: serving groups",
        "label_values(sglang:num_running_reqs, group)",
        [
            ("Time to the first token", "s", _quantiles("time_to_first_token_seconds")),
            ("Time between tokens", "s", _quantiles("inter_token_latency_seconds")),
            ("Throughput, tokens per second", "short", {"{{group}}": f"sum by (group) (sglang:gen_throughput{GROUP})"}),
            ("Accept length", "short", {"{{group}}": f"max by (group) (sglang:spec_accept_length{GROUP})"}),
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
        ],
    ),
    "transport": (
        "gb10: transport of the ranks",
        "label_values(gb10_transport_proven, group)",
        [
            ("Transport proven (1 = yes)", "short", {"{{group}} rank {{rank}}": f"gb10_transport_proven{GROUP}"}),
            (
                "Class and evidence",
                "short",
                {"{{group}} rank {{rank}}: {{class}}, {{evidence}}, {{reason}}": f"gb10_transport_info{GROUP}"},
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
            (
                "GID of the planned address (1 = present)",
                "short",
                {"{{group}} rank {{rank}} rail {{rail}} {{address}}": f"gb10_transport_gid_present{GROUP}"},
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


def _panel(title: str, unit: str, queries: dict[str, str]) -> timeseries.Panel:
    # The builder hides the legend unless it is asked for.
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    panel = timeseries.Panel().title(title).unit(unit).datasource(SOURCE).span(12).height(8).min(0)
    panel = panel.legend(legend.placement(LegendPlacement.BOTTOM))
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if unit == "percentunit" or "1 =" in title:
        panel = panel.max(1)
    if title in DESCRIPTIONS:
        panel = panel.description(DESCRIPTIONS[title])
    for letter, (shown, expression) in zip(string.ascii_uppercase, queries.items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(shown)
        panel = panel.with_target(query.datasource(SOURCE))
    return panel


def render(name: str) -> str:
    title, values, panels = DASHBOARDS[name]
    variable = "host" if name == "node" else "group"
    chosen = dashboard.QueryVariable(variable).datasource(SOURCE).query(values).multi(True).include_all(True)
    built = (
        dashboard.Dashboard(title).uid(f"gb10-{name}").tags(["gb10"]).refresh("30s").time("now-3h", "now").readonly()
    )
    built = built.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus"))
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
