# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the screen of a group that does not start: its lines, what it repeats, and which causes it leaves out."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import BY_ID
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import HEIGHT, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import (
    CONSEQUENCES,
    group_screen,
    merged,
    roots,
)
from failed_group import CLOSED, GROUP, TCP, UNREACHABLE, failed_group, pod

CRASH = {1: ["Loading weights", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", ""]}
NAD = "Pod gemma-4-31b-it-1-0: FailedCreatePodSandBox: cannot find a network-attachment-definition (gb10-rail1-vf0)"
# {what happened: (the result, its first line, what else it says, what it does not say)}
# What the lab's fault "unprivileged" ended with: the first rank has proved TCP, two have not connected yet.
LAB = json.loads((Path(__file__).parents[3] / "fixtures" / "screens" / "unprivileged.json").read_text())
CASES: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "no rank has an RDMA device": (
        failed_group([TCP] * 4),
        f"All 4 ranks of group {GROUP} talk TCP instead of RoCE, so the group does not serve.",
        [
            "Cause: NCCL sees no usable RDMA device",
            "What to do: Give the pod the device nodes: gb10_rdma_mode=privileged",
            f"Evidence: {pod(0)}:7:7 [0] NCCL INFO NET/IB : No device found. (NCCL of rank 0 on spark1)",
        ],
        ["NCCL_IB_HCA", "Probable cause", "Other ranks"],
    ),
    "no rank has an RDMA device, as seen in the lab": (
        LAB,
        f"All 4 ranks of group {GROUP} talk TCP instead of RoCE, so the group does not serve.",
        ["Cause: NCCL sees no usable RDMA device", "What to do: Give the pod the device nodes"],
        ["Rank", "Unhealthy", "NCCL_IB_HCA", "Probable cause"],
    ),
    "no rank has an RDMA device, and no log could be read": (
        LAB | {"causes": [], "logs": {}},
        f"Ranks 1, 3 of group {GROUP} talk TCP instead of RoCE, so the group does not serve.",
        ["Cause (ranks 1, 3): NCCL sees no usable RDMA device", "What to do: Give the pod the device nodes"],
        ["Probable cause"],
    ),
    "one rank has no RDMA device": (
        failed_group([(), TCP, (), ()]),
        f"Rank 1 of group {GROUP} talks TCP instead of RoCE, so the group does not serve.",
        ["Ranks 0, 2, 3 on spark1, spark3, spark4: ready", "(NCCL of rank 1 on spark2)"],
        ["NCCL_IB_HCA"],
    ),
    "one rank has no address, the others lose it": (
        failed_group([UNREACHABLE, CLOSED, CLOSED, CLOSED]),
        f"Group {GROUP} does not start: 4 of 4 ranks are not ready after 31 s.",
        ["Cause (rank 0): The peer's GID cannot be reached", "IPv4", "Network is unreachable"],
        ["control path", "Cause: "],
    ),
    "a server has no memory": (
        failed_group([(), (), (), ()], CRASH, rank1="crashed with exit code 1"),
        f"Group {GROUP} does not start: 1 of 4 ranks is not ready after 31 s.",
        [
            "Rank 1 on spark2: crashed with exit code 1",
            "What to do: Lower mem_fraction_static",
            "Evidence: torch.OutOfMemoryError: CUDA out of memory.",
            "(rank 1 on spark2)",
        ],
        ["Loading weights"],
    ),
    "a network attachment is missing": (
        failed_group([(), (), (), ()], events=[NAD], rank1="waits for its network"),
        f"Group {GROUP} does not start: 1 of 4 ranks is not ready after 31 s.",
        [
            "Rank 1 on spark2: waits for its network",
            "Cause: Pod gemma-4-31b-it-1-0: FailedCreatePodSandBox",
            "What to do: The network attachment gb10-rail1-vf0 is gone. Run playbooks/kubernetes.yml",
        ],
        [],
    ),
    "an image is missing": (
        failed_group([(), ()], events=["Pod x: Failed: Failed to pull image nope"], rank0="ErrImagePull: nope"),
        f"Group {GROUP} does not start: 1 of 2 ranks is not ready after 31 s.",
        ["What to do: An image can't be pulled. Check that the node reaches the registry"],
        [],
    ),
}


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("name", CASES)
def test_every_failure_is_one_screen_that_says_each_thing_once(name: str, width: int) -> None:
    result, title, wanted, unwanted = CASES[name]
    text = render(group_screen(result, GROUP), width)
    lines, said = text.splitlines(), " ".join(text.split())
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= width
    assert said.startswith(title)
    assert [words for words in wanted if words not in said] == []
    assert [words for words in unwanted if words in said] == []
    # No run of five words stands there twice.
    words = said.split()
    runs = Counter(" ".join(words[at : at + 5]) for at in range(len(words) - 4))
    assert [run for run, count in runs.items() if count > 1] == []


def test_the_readme_shows_the_screen_of_the_demo() -> None:
    shown = render(group_screen(LAB, GROUP)).strip()
    assert f"```text\n{shown}\n```" in (Path(__file__).parents[5] / "README.md").read_text(encoding="utf-8")


def test_the_screen_of_four_ranks_on_tcp_has_a_tenth_of_the_lines_of_the_message() -> None:
    logs = {rank: [f"line {number}" for number in range(15)] for rank in range(4)}
    result = failed_group([TCP] * 4, logs)
    assert result["msg"].count("NCCL sees no usable RDMA device") > 8
    assert len(result["msg"].splitlines()) > 70
    text = render(group_screen(result, GROUP))
    assert (len(text.splitlines()), text.count("RDMA device:")) == (6, 1)


def test_a_rank_without_a_pod_is_named() -> None:
    result = failed_group([(), ()], rank0="not scheduled: 0/4 nodes") | {"missing": [2, 3]}
    said = render(group_screen(result, GROUP))
    assert "3 of 4 ranks are not ready" in said
    assert "Ranks 2, 3: no pod" in said


def cause(name: str, rank: int | None, confidence: float) -> dict[str, Any]:
    return {
        "id": name,
        "rank": rank,
        "source": f"g-{rank}-0",
        "summary": f"{name}.",
        "remedy": f"Mend {name}.",
        "line": "",
        "confidence": confidence,
    }


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([("no_rdma_device", 0, 0.7), ("hca_selection", 0, 0.5)], [("no_rdma_device", 0)]),
        ([("peer_gone", 1, 0.6), ("reg_mr", 0, 0.9)], [("reg_mr", 0)]),
        ([("peer_gone", 1, 0.6), ("bootstrap", 0, 0.4)], [("peer_gone", 1), ("bootstrap", 0)]),
        ([("reg_mr", 0, 0.2)], []),
        ([("reg_mr", None, 0.9), ("gid_changed", None, 0.6)], [("reg_mr", None)]),
    ],
)
def test_a_rank_has_one_cause_and_consequences_give_way(
    found: list[tuple[str, int | None, float]], left: list[tuple[str, int | None]]
) -> None:
    assert [(each["id"], each["rank"]) for each in roots(cause(*one) for one in found)] == left


def test_a_cause_of_several_ranks_is_said_once() -> None:
    shown = merged([cause("a", 2, 0.9), cause("a", 0, 0.9), cause("b", 1, 0.5)], 3)
    assert [(one.text, one.who) for one in shown] == [("a.", "ranks 0, 2"), ("b.", "rank 1")]
    assert merged([cause("a", rank, 0.9) for rank in range(2)], 2)[0].who == ""
    assert merged([cause("a", None, 0.9)], 2)[0].who == "pod g-None-0"


def test_consequences_are_in_the_catalogue() -> None:
    assert set(BY_ID) > CONSEQUENCES
