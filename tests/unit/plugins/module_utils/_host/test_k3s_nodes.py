# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import node_wait


def node(name: str, ready: str = "True", **offers: str) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "message": "container runtime is down"}
    pressure = {"type": "MemoryPressure", "status": "False"}
    conditions = [pressure, condition]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, "allocatable": {"cpu": "4", **offers}}}


@pytest.mark.parametrize(
    ("names", "resources", "of_node", "said"),
    [
        (["a"], {}, {}, []),
        (
            [],
            {"gpu": 1},
            {},
            [
                "b offers 0 of 1 gpu",
                "c is not ready (container runtime is down) and offers 0 of 1 gpu",
                "new is not ready (it never reported) and offers 0 of 1 gpu",
            ],
        ),
        (["a"], {"gpu": 1000}, {}, []),
        (["a"], {"gpu": 1001}, {}, ["a offers 1000 of 1001 gpu"]),
        (["a", "b"], {}, {"a": ["vf0"]}, ["a offers 0 of 1 vf0"]),
        (["a"], {"gpu": 1, "vf1": 2}, {"a": ["vf0"]}, ["a offers 0 of 1 vf0 and offers 0 of 2 vf1"]),
        (["d"], {}, {}, ["d has not joined the cluster"]),
        (["new"], {"gpu": 1}, {}, ["new is not ready (it never reported) and offers 0 of 1 gpu"]),
    ],
)
def test_what_nodes_lack(
    names: list[str], resources: dict[str, int], of_node: dict[str, list[str]], said: list[str]
) -> None:
    cluster = [node("a", gpu="1k"), node("b"), node("c", ready="False"), {"metadata": {"name": "new"}}]
    assert node_wait.missing_on_nodes(cluster, names, resources, of_node) == said


def test_no_node_at_all_is_not_enough() -> None:
    assert node_wait.missing_on_nodes([], [], {}, {}) == ["no node has this label"]
