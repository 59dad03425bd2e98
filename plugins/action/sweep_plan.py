# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a sweep on the controller: list all cells, the remaining ones, and the invalid ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import as_dicts, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import read_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import current, estimate_s, remaining
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import examine, serving_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import SWEEPS, Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import repositories, revisions
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import read_yaml


def _find(name: str, directories: list[str]) -> Path:
    """Return the sweep's file from a path, or from a name in the user's directories or the collection."""
    candidates = [Path(name), *(Path(d) / f"{name}.yml" for d in directories), SWEEPS / f"{name}.yml"]
    for path in candidates:
        if path.is_file():
            return path
    shipped = ", ".join(sorted(p.stem for p in SWEEPS.glob("*.yml")))
    problem = "this file does not exist" if name else "no sweep is named"
    raise AnsibleActionFail(f"sweep = {name!r}: {problem}. Add -e sweep=NAME with a path, or one of: {shipped}")


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.sweep_plan``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan; fail with all findings if the file is invalid or no cell can run."""
        path = _find(options["sweep"], options["sweep_dirs"])
        try:
            sweep = read_yaml(path)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from None
        examined = examine(sweep, options["profile_dirs"], options["sglang_version"])
        planned = examined.planned
        if has_errors(examined.findings):
            text = f"The sweep {path} is invalid; nothing was measured."
            return {"failed": True, "findings": as_dicts(examined.findings), "msg": text}
        cells = [asdict(cell) for cell in planned.cells]
        records = current(read_journal(options["journal"]), {"cells": cells, "workloads": sweep["workloads"]})
        left = [
            {**c, "serving": serving_of(c["overlay"], options["sglang_version"])} for c in remaining(cells, records)
        ]
        minutes = float(sweep.get("cell_minutes", 30))
        seconds = estimate_s(cells, records, 60 * minutes)
        return {
            "changed": False,
            "run": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "name": planned.name,
            "profile": sweep["profile"],
            "workloads": list(sweep["workloads"]),
            "stop": dict(sweep.get("stop") or {}),
            "cell_minutes": minutes,
            "cells": cells,
            "remaining": left,
            "unfinished": [
                Rules("_bench").finding("sweep.unfinished", len(left), next=cell["id"]).as_dict() for cell in left[:1]
            ],
            "models": sorted({name for c in left for name in repositories(examined.resolved[c["key"]])}),
            "revisions": {name: at for c in left for name, at in revisions(examined.resolved[c["key"]]).items()},
            "estimate_s": seconds,
            "msg": f"{len(cells)} cells: {planned.count('run')} to measure, {planned.count('invalid')} that "
            f"SGLang refuses, {planned.count('duplicate')} with the command line of another cell; "
            f"{len(left)} left, about {seconds / 3600:.1f} h",
        }
