# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two sweeps on the controller, and fail when the second is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils import _journal
from ansible_collections.gb10.cluster.plugins.module_utils._bench_rank import comparison_lines, regressions
from ansible_collections.gb10.cluster.plugins.module_utils._bench_report import from_records


class ActionModule(ActionBase):
    """Carry out ``gb10.cluster.bench_compare``."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the table; failed when a row is worse or missing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        path = {"type": "path", "required": True}
        spec = {"before": path, "after": path, "tolerance": {"type": "float", "default": 0.05}}
        _unused, options = self.validate_argument_spec(spec)
        reports = []
        for side in ("before", "after"):
            file = Path(options[side])
            if not file.is_file():
                raise AnsibleActionFail(f"{side} = {file}: no such journal. Name one that a sweep wrote (.jsonl).")
            try:
                reports.append(from_records(file.stem, _journal.read(file).records))
            except _journal.JournalDamaged as error:
                raise AnsibleActionFail(str(error)) from error
        rows = regressions(reports[0], reports[1], options["tolerance"])
        bad = [r for r in rows if r["verdict"] in ("worse", "missing")]
        lines = comparison_lines(rows)
        head = f"{len(bad)} of {len(rows)} figures are worse or missing"
        if not rows:
            head = "There is nothing to compare: no healthy cell in the first set."
        return result | {
            "changed": False,
            "failed": bool(bad) or not rows,
            "rows": rows,
            "lines": lines,
            "msg": "\n".join([head, *lines]),
        }
