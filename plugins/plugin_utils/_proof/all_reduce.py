# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure all-reduces between the pods of a group. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import PodContainer

from .progress import Progress

# The ranks of an all-reduce run at the same time in the background of their pods; each writes its output here.
_OUTPUT = "/tmp/gb10-all-reduce"


def measure(
    containers: Iterable[PodContainer], plan: Mapping[str, Any], size: int, port: int, limit: int, progress: Progress
) -> dict[str, Any]:
    """Return what all_reduce_bandwidth.py prints on rank 0; raise ValueError if a rank fails or exceeds ``limit``."""
    by_pod, ranks = {each.pod: each for each in containers}, plan["ranks"]
    place = f"--address {plan['rendezvous']['address']} --port {port}"
    for rank in ranks:
        command = (
            f"rm -f {_OUTPUT}; {{ timeout {limit} python3 /opt/gb10/all_reduce_bandwidth.py"
            f" --rank {rank['rank']} --ranks {len(ranks)} {place} --bytes {size}; echo ended $?; }}"
            f" > {_OUTPUT} 2>&1 < /dev/null &"
        )
        by_pod[rank["pod"]].run(["sh", "-c", command])
    outputs = [_output(by_pod[rank["pod"]], limit, progress) for rank in ranks]
    bad = sorted({text.strip()[-400:] for text in outputs if text.rstrip().split("\n")[-1] != "ended 0"})
    if bad:
        raise ValueError(f"the all-reduce could not be measured: {'; '.join(bad)}")
    # NCCL may print lines before the figures of rank 0.
    figures = [line for line in outputs[0].splitlines() if line.startswith("{")]
    return dict(json.loads(figures[-1]))


def _output(container: PodContainer, limit: int, progress: Progress) -> str:
    """Return the output of a rank after it ended or its time limit passed."""
    deadline = progress.now() + limit + 5
    while True:
        text = container.run(["cat", _OUTPUT]).stdout
        if "\nended " in f"\n{text}" or progress.now() >= deadline:
            return text
        progress.pause(1)
