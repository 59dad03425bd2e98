# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a running server from the controller; an action, since it shows its progress while it works."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._load_cell import Workload, measure
from ansible_collections.gb10.cluster.plugins.module_utils._load_client import Busy, Target, aiohttp

DISPLAY = Display()


class ActionModule(ActionBase):
    """Carry out ``gb10.cluster.load_cell``."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run every workload in turn and return their records; a workload that can't be measured keeps its reason."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(
            {
                "url": {"type": "str", "required": True},
                "model": {"type": "str", "required": True},
                "api_key": {"type": "str", "no_log": True},
                "timeout": {"type": "float", "default": 600.0},
                "metrics": {"type": "bool", "default": True},
                "strict": {"type": "bool", "default": True},
                "workloads": {"type": "list", "elements": "dict", "required": True},
            }
        )
        result |= {"changed": False, "cells": [], "took_s": 0.0, "msg": ""}
        if aiohttp is None:
            raise AnsibleActionFail("aiohttp is not installed on the controller. Install it with: pip install aiohttp")
        try:
            workloads = [Workload(**w) for w in options["workloads"]]
        except TypeError as error:
            raise AnsibleActionFail(f"workloads: {error}. See ansible-doc gb10.cluster.load_cell.") from error
        if self._task.check_mode:
            return result | {"skipped": True, "msg": f"{len(workloads)} cells would be measured"}
        target = Target(options["url"].rstrip("/"), options["model"], options["api_key"], options["timeout"])
        for i, workload in enumerate(workloads, start=1):
            result["cells"].append(self._measure(target, workload, options["metrics"], f"[{i}/{len(workloads)}] "))
        result["took_s"] = sum(c["took_s"] for c in result["cells"])
        bad = [c for c in result["cells"] if c["status"] != "ok"]
        if bad:
            result["failed"] = options["strict"]
            result["msg"] = "; ".join(
                f"{c['workload']['name']}: {c['status']} {c.get('reason', '')}".strip() for c in bad
            )
        else:
            result["msg"] = f"{len(workloads)} cells measured"
        return result

    @staticmethod
    def _measure(target: Target, workload: Workload, metrics: bool, prefix: str) -> dict[str, Any]:
        started = time.monotonic()
        try:
            cell = asyncio.run(measure(target, workload, metrics, lambda line: DISPLAY.display(prefix + line)))
        except Busy as error:
            cell = {"workload": {"name": workload.name}, "status": "shared", "reason": str(error)}
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = f"{target.url}/metrics can't be read: {error}. Serve with --enable-metrics, or set metrics: false."
            cell = {"workload": {"name": workload.name}, "status": "infrastructure", "reason": reason}
        return cell | {"took_s": time.monotonic() - started}
