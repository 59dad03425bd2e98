# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the report of one or more sweeps on the controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.html import page
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.presets import with_winners
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.rows import Report, from_records
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.sections import data, markdown
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.table import headlines
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.action import read_journal


def _tuned(report: Report, directory: str, search: list[str]) -> tuple[str, str, list[str]]:
    """Return path and text of the user's own copy of the profile with the winners as presets, and a line about each."""
    profile, lines = with_winners(load_profile(report.profile, [directory, *search]), report)
    head = f"# Profile {report.profile} with the winners of sweep {report.title} as presets tuned-*.\n"
    text = head + yaml.safe_dump(profile, sort_keys=False, allow_unicode=True, width=120)
    return f"{directory}/{report.profile}.yml", text, lines


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.bench_report``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``dest``.html, .md and .json; a file that would not change is left alone."""
        reports = []
        for name in options["journals"]:
            report = from_records(Path(name).stem, read_journal(name))
            report.reproduce = options["reproduce"] or report.reproduce
            reports.append(report)
        files = {
            ".html": page([(r, pictures(r)) for r in reports]),
            ".md": "\n".join(markdown(r) for r in reports),
            ".json": json.dumps({"reports": [data(r) for r in reports]}, indent=2) + "\n",
        }
        written: list[str] = []
        if options["presets_dir"] and reports[-1].profile and reports[-1].ranked:
            path, text, written = _tuned(reports[-1], options["presets_dir"], options["profile_dirs"])
            files |= {path: text}
        changed = []
        for suffix, text in files.items():
            target = Path(suffix if suffix.endswith(".yml") else options["dest"] + suffix)
            if target.exists() and target.read_text(encoding="utf-8") == text:
                continue
            changed.append(str(target))
            if not self._task.check_mode:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        lines = [line for r in reports for line in headlines(r)]
        if written:
            where = f"presets in {options['presets_dir']}/{reports[-1].profile}.yml"
            lines += [f"{where} (use them with -e gb10_profile_dirs=['{options['presets_dir']}'])", *written]
        return {
            "changed": bool(changed),
            "files": [s if s.endswith(".yml") else options["dest"] + s for s in files],
            "lines": lines,
            "msg": "\n".join([*lines, f"Report: {options['dest']}.html"]),
        }
