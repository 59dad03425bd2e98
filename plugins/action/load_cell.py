# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a running server from the controller. This is an action, because a module cannot show progress."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import (
    HAVE_AIOHTTP,
    NO_ANSWER,
    UNREADABLE,
    Busy,
    Server,
    Target,
    graphs_expected,
    longest_step,
    measure,
    served_model,
    server_info,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import traffic
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import Workload
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, tell

QUIET_SECONDS, LOOK_SECONDS = 30, 1.0


async def while_wanted(work: Coroutine[Any, Any, dict[str, Any]], show: Callable[[str], None]) -> dict[str, Any]:
    """Await the work and show how long it takes, and cancel it when the playbook has ended, so that the load stops."""
    parent, begun, shown = os.getppid(), time.monotonic(), 0.0
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=LOOK_SECONDS))[0]:
        passed = time.monotonic() - begun
        if passed - shown >= QUIET_SECONDS:
            shown = passed
            show(f"{passed:.0f} s so far")
        if os.getppid() != parent:
            task.cancel()
    return task.result()


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.load_cell``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Run all workloads in turn and return their records; a workload that can't be measured has a reason."""
        result: dict[str, Any] = {"changed": False, "cells": [], "server_info": {}, "msg": ""}
        if not HAVE_AIOHTTP:
            raise AnsibleActionFail(
                f"aiohttp is not installed on the controller. Run {sys.executable} -m pip install aiohttp"
            )
        workloads = [Workload(**w) for w in options["workloads"]]
        counts = [
            f"{name} of workload {number} is {getattr(workload, name)}"
            for number, workload in enumerate(workloads, start=1)
            for name in ("concurrency", "max_tokens", "repetitions")
            if getattr(workload, name) < 1
        ]
        if counts:
            raise AnsibleActionFail(f"{'; '.join(counts)}, so nothing would be measured. Set at least 1")
        if self._task.check_mode:
            return result | {"skipped": True, "msg": f"{len(workloads)} cells would be measured"}
        target = Target(options["url"].rstrip("/"), options["model"], options["api_key"], options["timeout"])
        if not target.model:
            target = replace(target, model=self._served(target))
        result["server_info"] = asyncio.run(server_info(target))
        if result["server_info"].get("is_embedding"):
            raise AnsibleActionFail(
                f"{target.url} serves a model for embeddings or reranking, which generates no tokens to measure. "
                "Measure it with a client for embeddings, such as genai-bench"
            )
        # How many tokens the server verifies per step, with the target's own
        verified = result["server_info"].get("speculative_num_draft_tokens")
        workloads = [replace(w, draft_tokens=w.draft_tokens or verified) for w in workloads]
        for i, workload in enumerate(workloads, start=1):
            known = Server(
                options["metrics"],
                graphs_expected(result["server_info"]),
                options["idle_timeout"],
                options["judge_output"],
                longest_step(result["server_info"]) or workload.draft_tokens,
            )
            cell = self._measure(target, workload, known, f"[{i}/{len(workloads)}] {traffic(workload.name)}: ")
            result["cells"].append(cell)
            if cell["status"] != "ok":
                break
        return result | _conclusion(result["cells"], len(workloads), options["strict"])

    @staticmethod
    def _served(target: Target) -> str:
        try:
            return asyncio.run(served_model(target))
        except NO_ANSWER as error:
            raise AnsibleActionFail(
                f"{target.url}/v1/models: {error}. Correct bench_url, or name the model with bench_model."
            ) from None

    def _measure(self, target: Target, workload: Workload, known: Server, prefix: str) -> dict[str, Any]:
        def show(line: str) -> None:
            tell(prefix + line)

        try:
            return asyncio.run(while_wanted(measure(target, workload, known, show), show))
        except Busy as error:
            return {"workload": {"name": workload.name}, "status": "shared", "reason": str(error)}
        except UNREADABLE as error:
            reason = f"{target.url}/metrics can't be read: {error}. Serve with --enable-metrics, or set metrics: false."
            return {"workload": {"name": workload.name}, "status": "infrastructure", "reason": reason}


def _conclusion(cells: list[Mapping[str, Any]], wanted: int, strict: bool) -> dict[str, Any]:
    """Return the message and the failure status for the measured cells."""
    wrong = [c for c in cells if c["status"] != "ok"]
    bad = [f"{traffic(c['workload']['name'])}: {c['status']} {c.get('reason', '')}".strip() for c in wrong]
    if not bad:
        return {"msg": f"{wanted} cells measured"}
    left = wanted - len(cells)
    rest = [f"{left} more not measured after that"] if left else []
    return {"failed": strict, "msg": "; ".join(bad + rest)}
