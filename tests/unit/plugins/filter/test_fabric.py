# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
from typing import Any

import pytest
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


PINGED = {"host": "spark1", "peer": "spark2", "rail": "rail0", "vf_index": 0, "ok": True, "layer": "", "reason": ""}
PINGED |= {"source": "10.100.0.1", "pod_uid": "uid-1"}
OTHER = PINGED | {"host": "spark2", "peer": "spark1", "source": "10.100.0.2", "pod_uid": "uid-2"}


@pytest.mark.parametrize(
    ("one", "two", "pinged"),
    [
        ([PINGED], [OTHER], True),
        ([PINGED | {"pod_uid": "", "source": "10.100.0.9"}, PINGED], [OTHER], True),
        ([PINGED], [OTHER | {"pod_uid": "uid-of-its-predecessor"}], False),
        ([PINGED], [OTHER | {"pod_uid": ""}], False),
        ([PINGED], [OTHER | {"source": "10.100.1.2"}], False),
        ([PINGED, PINGED | {"ok": False, "layer": "mtu", "peer": "spark3"}], [OTHER], False),
        ([PINGED, OTHER], [], False),
        ([PINGED], None, False),
    ],
)
def test_only_pings_from_inside_the_same_pods_count(one: Any, two: Any, pinged: bool) -> None:
    pods = FILTERS["probe_pods"](PLAN, {"spark1": "node1", "spark2": "node2"}, "ns", "pause:3", [])
    for number, pod in enumerate(pods, start=1):
        pod["metadata"]["uid"] = f"uid-{number}"
    hostvars = {"spark1": {"found": {"results": one}}, "spark2": {"found": {"results": two}}, "spark3": {}}
    assert FILTERS["fabric_pinged"](pods, hostvars, list(hostvars), "found") is pinged
    assert FILTERS["fabric_pinged"]([], hostvars, list(hostvars), "found") is False
    pods[1]["metadata"]["annotations"] = None
    assert FILTERS["fabric_pinged"](pods, hostvars, list(hostvars), "found") is False
