# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two sweeps on the controller, and fail if the second is worse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import existing_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import (
    comparison_lines,
    from_records,
    regressions,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.bench_compare``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table; failed if a row is worse or missing."""
        paths = options["before"], options["after"]
        before, after = (from_records(Path(path).stem, existing_journal(path)) for path in paths)
        rows = regressions(before, after, options["tolerance"])
        bad = [r for r in rows if r["verdict"] in ("worse", "missing")]
        nothing = [f"There is nothing to compare: no healthy cell in {options['before']}. Measure it again."]
        lines = comparison_lines(rows) if rows else nothing
        return {
            "changed": False,
            "failed": bool(bad) or not rows,
            "rows": rows,
            "lines": lines,
            "msg": "\n".join(lines),
        }
