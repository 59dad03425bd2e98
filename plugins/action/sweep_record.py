# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Append one record to a sweep's journal, and report the progress of the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.release import __version__ as ansible_version
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import (
    collection_version,
    commit,
    read_journal,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import (
    conclude,
    current,
    engines,
    from_results,
    identity,
    last_plan,
    progress_line,
    single_cell,
    stop_reason,
    took_s,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, tell


def _origin(task_vars: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "inventory": list(task_vars.get("ansible_inventory_sources") or []),
        "commit": commit(),
        "collection": collection_version(),
        "ansible": ansible_version,
    }


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.sweep_record``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Append the record; a plan that the journal already has is not repeated, and no cell starts after a stop."""
        path = Path(options["journal"])
        recorded = read_journal(path)
        now = datetime.now(UTC)
        record: dict[str, Any] = {"at": now.isoformat(timespec="seconds"), **options["record"]}
        plan = last_plan(recorded)
        records = current(recorded, plan)
        kind = record.get("kind")
        result: dict[str, Any] = {"changed": True, "stop": "", "engines": {}, "msg": f"{kind}"}
        if kind == "plan":
            if "server" in record:
                record |= single_cell(record.pop("server"), record.pop("preset", ""))
            result["changed"] = any(record.get(part) != plan.get(part) for part in ("cells", "workloads"))
        elif kind == "start":
            result["stop"] = stop_reason(options["stop"], records, now, record.get("run"))
            result["changed"] = not result["stop"]
            result["engines"] = engines(str(record["cell"]), plan, records)
            line = progress_line(str(record["cell"]), plan["cells"], records, 60 * options["cell_minutes"])
            result["msg"] = f"{record['cell']} does not start: {result['stop']}" if result["stop"] else line
            tell(result["msg"])
        elif kind == "result":
            record.setdefault("cell", plan["cells"][0]["id"] if plan["cells"] else "")
            record |= conclude(
                from_results(options["evidence"]), _origin(task_vars), engines(str(record["cell"]), plan, records)
            )
            record |= identity(record["cell"], plan)
            record["took_s"] = took_s(record["cell"], records, now)
            why = (record.get("failure") or {}).get("line", "") or record.get("duplicate_of", "")
            result["msg"] = f"{record['cell']}: {record['status']}" + (f": {why}" if why else "")
            tell(result["msg"])
        if result["changed"] and not self._task.check_mode:
            journal.append(path, record)
        return result | {"record": record}
