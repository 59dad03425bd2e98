# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add one record to a sweep's journal, and say how far the sweep is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils import _journal
from ansible_collections.gb10.cluster.plugins.module_utils._failure_class import classify


class ActionModule(ActionBase):
    """Carry out ``gb10.cluster.sweep_record``."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Append the record; a failed cell's class is read from its ranks' logs."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(
            {
                "journal": {"type": "path", "required": True},
                "record": {"type": "dict", "required": True},
                "logs": {"type": "list", "elements": "str", "default": []},
            }
        )
        record: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **options["record"]}
        if record.get("kind") == "result" and record.get("status") == "failed":
            failure = classify(line for text in options["logs"] for line in text.splitlines())
            if failure is not None:
                record |= {"status": failure.kind, "failure": failure.as_dict()}
        if not self._task.check_mode:
            _journal.append(Path(options["journal"]), record)
        return result | {
            "changed": True,
            "record": record,
            "msg": f"{record.get('cell', '')} {record.get('status', '')}",
        }
