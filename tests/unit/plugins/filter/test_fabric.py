# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

from ansible_collections.gb10.cluster.plugins.filter import fabric

FILTERS = fabric.FilterModule().filters()
PLAN: dict[str, Any] = {
    "networks": [],
    "hosts": {
        name: {"vfs": [{"nad": "gb10-rail0-vf0", "address": f"10.100.0.{number}", "prefix": 24}]}
        for number, name in enumerate(("spark1", "spark2"), start=1)
    }
    | {"bare": {"vfs": []}},
}


def test_probes_only_where_vfs_are_free() -> None:
    hosts = {"spark1": "node1", "spark2": "node2", "bare": "node3"}
    probes = FILTERS["probe_pods"](PLAN, hosts, "ns", "pause:3", [])
    assert [probe["spec"]["nodeName"] for probe in probes] == ["node1", "node2"]
    busy = [probes[0]]
    assert [probe["spec"]["nodeName"] for probe in FILTERS["probe_pods"](PLAN, hosts, "ns", "pause:3", busy)] == [
        "node2"
    ]


def test_findings_as_text() -> None:
    probe = FILTERS["probe_pods"](PLAN, {"spark1": "node1"}, "ns", "pause:3", [])[0]
    assert FILTERS["attachment_findings"]([probe])[0]["rule"] == "multus.attachment.missing"
    status = json.dumps([{"interface": "net1", "ips": ["10.100.0.1"]}])
    probe["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] = status
    assert FILTERS["attachment_findings"]([probe]) == []
