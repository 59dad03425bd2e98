# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a sweep on the controller: what there is to measure, what is left of it, and what has no sense."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._paths import SWEEPS
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.profile import repositories, revisions
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import ResolvedProfile, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_checks import override_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile, override_problems
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.action import read_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.plan import Resolved, plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.progress import current, estimate_s, remaining

NOT_LAID_OVER = frozenset({"preset", "sglang_version", "transport"})


def _find(name: str, directories: list[str]) -> Path:
    """Return the sweep's file: a path, or a name in the user's directories or the collection."""
    candidates = [Path(name), *(Path(d) / f"{name}.yml" for d in directories), SWEEPS / f"{name}.yml"]
    for path in candidates:
        if path.is_file():
            return path
    shipped = ", ".join(sorted(p.stem for p in SWEEPS.glob("*.yml")))
    raise AnsibleActionFail(f"sweep = {name!r}: there is no such file. Name a path, or one of: {shipped}")


def _key(resolved: ResolvedProfile, transport: str) -> str:
    """Return what tells two cells apart: the engine, and what it runs in, of which SGLang knows nothing."""
    env = {name: value for name, value in resolved.env.items() if not name.startswith("SGLANG_")}
    return "|".join([resolved.engine, transport, resolved.image, json.dumps(env, sort_keys=True)])


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.sweep_plan``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan; fail with every finding at once when the file or no cell makes sense."""
        path = _find(options["sweep"], options["sweep_dirs"])
        sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
        profile = load_profile(str(sweep.get("profile")), options["profile_dirs"])

        made: dict[str, ResolvedProfile] = {}
        unknown: dict[str, None] = {}
        wrong: dict[str, Finding] = {}

        def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
            over = {k: v for k, v in overlay.items() if k not in NOT_LAID_OVER}
            found = override_findings(override_problems(over), str(path))
            wrong.update((str(finding), finding) for finding in found)
            if found:
                return Resolved("", found)
            try:
                resolved = resolve(profile, overlay.get("preset"), overlay.get("sglang_version"), over)
            except ValueError as error:
                unknown[str(error)] = None
                return Resolved("")
            key = _key(resolved, overlay.get("transport", "roce"))
            made[key] = resolved
            return Resolved(key, resolved.findings)

        planned = plan(sweep, as_sglang)
        findings = [*planned.findings, *wrong.values()]
        if has_errors(findings):
            raise AnsibleActionFail(f"{path} makes no sense:\n{format_findings(findings)}")
        if unknown:
            raise AnsibleActionFail(f"{path} makes no sense:\n" + "\n".join(unknown))
        if not planned.count("run"):
            errors = [r for c in planned.cells for r in c.reasons if r["severity"] == "error"]
            reasons = {str(Finding(**error)) for error in errors}
            raise AnsibleActionFail(f"{path}: SGLang refuses every cell:\n" + "\n".join(sorted(reasons)))
        cells = [c.as_dict() for c in planned.cells]
        records = current(read_journal(options["journal"]), {"cells": cells, "workloads": sweep["workloads"]})
        left = remaining(cells, records)
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
            "models": sorted({name for c in left for name in repositories(made[c["key"]])}),
            "revisions": {name: wanted for c in left for name, wanted in revisions(made[c["key"]]).items()},
            "estimate_s": seconds,
            "msg": f"{len(cells)} cells: {planned.count('run')} to measure, {planned.count('invalid')} that "
            f"SGLang refuses, {planned.count('duplicate')} that are the engine of another"
            f"{f' (as are {planned.twins} of the refused)' if planned.twins else ''}; {len(left)} left, about "
            f"{seconds / 3600:.1f} h",
        }
