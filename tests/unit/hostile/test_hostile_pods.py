# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that no label and no annotation of a pod stops a run: whoever may create a pod in the namespace writes them.

The list of what is read comes from the code: a function that turns such a text into a number or into networks has to be
tried here, and none may do so by itself.
"""

import ast
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import labels
from ansible_collections.gb10.cluster.plugins.module_utils._kube.group_status import holders, read_group
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE, RANK, REVISION, VF_INDEX
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import find_containers
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.attachments import (
    NETWORK_STATUS,
    NETWORKS,
    all_pinged,
    attached_nads,
    compare_status,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe, rows
from serving_samples import plan

ROOT = Path(__file__).resolve().parents[3]
NETWORK = {"name": "gb10-rail0-vf0", "interface": "net1", "ips": ["10.100.0.1/24"]}
NETS, STATUS = json.dumps([NETWORK]), json.dumps([{**NETWORK, "ips": ["10.100.0.1"]}])
VALUES: list[str] = ["", "x", "-1", "+1", "1.5", "²", "٣", "0x1", "1e9", "9" * 5000, "0 ", "nan", "{{ 1 }}", "\x1b[2J"]
VALUES += ["[", "{", "null", "5", '"a"', "[null]", "[5]", "[[]]", "[{}]", '{"a": 1}', "[" * 100_000]
VALUES += [
    json.dumps([NETWORK | {key: bad}]) for key in NETWORK for bad in (None, 5, [], {}, [5], [None], "a" * 10_000)
]
NAMES = sorted({*(value for value in vars(labels).values() if isinstance(value, str) and "/" in value)})


def pod(**metadata: str) -> dict[str, Any]:
    """Return a pod of rank 0, whose labels and annotations are changed as asked."""
    own = {INSTANCE: "a", RANK: "0", **metadata}
    notes = {NETWORKS: NETS, NETWORK_STATUS: STATUS, REVISION: "r", VF_INDEX: "0", **metadata}
    container = {"name": "sglang", "image": "i", "command": ["a", "--b", "c"]}
    return {
        "metadata": {"name": "a-0-0", "namespace": "n", "uid": "u", "labels": own, "annotations": notes},
        "spec": {"nodeName": "n1", "nodeSelector": {"kubernetes.io/hostname": "n1"}, "containers": [container]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "sglang", "state": {}}]},
    }


def workload(of: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "StatefulSet", "metadata": of["metadata"], "spec": {"template": of}}


def found_containers(of: dict[str, Any]) -> Any:
    return find_containers(SimpleNamespace(pods=lambda *_selected: [of]), "n", "l", "", RANK)  # type: ignore[arg-type]


PLAN = plan()
RESULT = {"pod_uid": "u", "source": "10.100.0.1", "ok": True}


def described(of: dict[str, Any]) -> Any:
    return describe([workload(of)])


def shown(of: dict[str, Any]) -> Any:
    return rows(PLAN, [of], {}, {}, {})


READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "module_utils/_kube/group_status.py read_rank": lambda of: read_group([of], [], 1).lines(),
    "module_utils/_kube/group_status.py holders": lambda of: holders([workload(of)]),
    "module_utils/_kube/pod_logs.py find_containers": found_containers,
    "plugin_utils/_fabric/attachments.py all_pinged": lambda of: all_pinged([of], [RESULT]),
    "plugin_utils/_fabric/attachments.py attached_nads": lambda of: attached_nads([of]),
    "plugin_utils/_fabric/attachments.py compare_status": lambda of: "\n".join(map(str, compare_status(of))),
    "plugin_utils/_serving/summary.py describe": described,
    "plugin_utils/_serving/summary.py _rank": described,
    "plugin_utils/_serving/summary.py rows": shown,
}
# Reads its own annotation, and takes each error for a Lease of somebody else (test_controller_run_lock.py).
GUARDED = {"action/run_lock.py holder"}


def functions(calls: set[str]) -> Iterator[str]:
    """Yield the functions that read labels or annotations of an object and call one of these."""
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not ("metadata" in text and ("labels" in text or "annotations" in text)):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            parts = list(ast.walk(node))
            texts = {part.value for part in parts if isinstance(part, ast.Constant)}
            called = {ast.unparse(part.func) for part in parts if isinstance(part, ast.Call)}
            if called & calls and "metadata" in texts and texts & {"labels", "annotations"}:
                yield f"{path.relative_to(ROOT / 'plugins')} {node.name}"


def test_each_function_that_reads_a_text_of_a_pod_is_tried_here() -> None:
    assert set(functions({"number", "read_networks"})) == set(READERS)
    assert set(functions({"int", "float", "json.loads", "yaml.safe_load"})) - set(READERS) == GUARDED


@pytest.mark.parametrize("read", dict.fromkeys(READERS.values()))
def test_no_label_and_no_annotation_stops_a_reader(read: Callable[[dict[str, Any]], Any]) -> None:
    for name in (*NAMES, NETWORKS, NETWORK_STATUS):
        for value in VALUES:
            given = pod(**{name: value})
            before = copy.deepcopy(given)
            str(read(given))
            assert given == before


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize("reader", READERS)
def test_a_pod_without_them_stops_no_reader(reader: str, part: str) -> None:
    for value in ({}, None):
        given = pod()
        given["metadata"][part] = value
        READERS[reader](given)


def test_a_pod_that_names_no_rank_is_none_of_the_group() -> None:
    group = read_group([pod(), pod(**{RANK: "one"})], [], 2)
    assert ([rank.rank for rank in group.ranks], group.missing) == ([0], [1])
    assert holders([workload(pod(**{VF_INDEX: "none"})), workload(pod())]) == [
        {"instance": "a", "node": "n1", "vf_index": 0}
    ]
    assert attached_nads([pod(), pod(**{NETWORKS: "[oops"})]) == {"n1": {"gb10-rail0-vf0"}}
