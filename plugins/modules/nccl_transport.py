#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import SELECTION_SPEC, find_containers
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import judge_until_final, pod_sources
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import (
    Judgement,
    expand,
    judge_sources,
    keep_evidence,
    local_sources,
    written_by_nccl,
)
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, expectation

EXPECT_SPEC: dict[str, dict[str, Any]] = {
    "networks": {"type": "list", "elements": "str", "default": []},
    "evidence": {"type": "str", "choices": ["banner", "selection", "channels"], "default": "channels"},
    "ranks": {"type": "int", "default": 0},
    "nodes": {"type": "int", "default": 0},
    "min_devices": {"type": "int", "default": 0},
    "balance": {"type": "float", "default": 0.0},
    "gdr": {"type": "bool"},
    "complete": {"type": "bool", "default": False},
    "allow_intra": {"type": "bool", "default": False},
    "allow_unknown": {"type": "bool", "default": False},
}
PODS_SPEC: dict[str, dict[str, Any]] = SELECTION_SPEC | {
    "since_seconds": {"type": "int", "default": 0},
    "previous": {"type": "bool", "default": False},
    "log_file": {"type": "str", "default": ""},
    "rank_label": {"type": "str", "default": ""},
}


def is_text(options: dict[str, Any]) -> bool:
    """Return whether a source is something else than a file that NCCL wrote; raise SourceError."""
    pods = options["pods"]
    in_pods = pods is not None and (not pods["log_file"] or pods["log_file"].startswith(("/dev/", "/proc/")))
    return (
        options["text"] is not None or in_pods or not all(written_by_nccl(path) for path in expand(options["files"])[0])
    )


def refuse_text(result: dict[str, Any]) -> dict[str, Any]:
    """Return the judgement of a text: whatever it says, it proves nothing."""
    if not result["satisfied"]:
        return result
    why = f"{result['remark']}. Read such files, or set text_proves where nobody else can send prompts"
    return result | {"satisfied": False, "failures": [why], "msg": f"{result['msg']}. {why}"}


def judge_once(options: dict[str, Any], expect: Expectation) -> Judgement:
    """Read and judge everything once; raise SourceError and ClusterError."""
    own_files = not is_text(options)
    sources = local_sources(options["files"], options["text"])
    places: dict[str, int | None] = {}
    if wanted := options["pods"]:
        cluster = Cluster(options["kubeconfig"], options["context"])
        containers = find_containers(
            cluster, wanted["namespace"], wanted["label_selector"], wanted["container"], wanted["rank_label"]
        )
        places = {each.pod: each.place for each in containers}
        limits = {"previous": wanted["previous"], "since_seconds": wanted["since_seconds"]}
        sources |= pod_sources(containers, wanted["log_file"], **limits)
    result, kept = judge_sources(sources, expect, places, own_files=own_files)
    return result if own_files or options["text_proves"] else refuse_text(result), kept


def run(options: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Read and judge until the judgement is final or the time is over; return the judgement."""
    result, kept = judge_until_final(
        partial(judge_once, options, expectation(options["expect"] or {})),
        options["timeout"],
        time.monotonic,
        partial(time.sleep, options["interval"]),
    )
    directory = options["evidence_dir"]
    written = keep_evidence(Path(directory), result, kept) if directory and keep else []
    return result | {"kept": written}


def main() -> None:
    """Judge, and fail when the expectation is not met."""
    module = AnsibleModule(
        argument_spec={
            "pods": {"type": "dict", "options": PODS_SPEC},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "files": {"type": "list", "elements": "str", "default": []},
            "text": {"type": "str"},
            "text_proves": {"type": "bool", "default": False},
            "plan": {"type": "dict"},
            "expect": {"type": "dict", "options": EXPECT_SPEC},
            "timeout": {"type": "int", "default": 0},
            "interval": {"type": "int", "default": 5},
            "evidence_dir": {"type": "path"},
        },
        # The action of this name takes a plan out of the options.
        required_one_of=[["pods", "files", "text"]],
        supports_check_mode=True,
    )
    result = run(module.params, keep=not module.check_mode)
    if result["satisfied"]:
        module.exit_json(changed=False, **result)
    module.fail_json(changed=False, **result)


if __name__ == "__main__":
    main()
