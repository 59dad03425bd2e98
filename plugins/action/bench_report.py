# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of one or more sweeps on the controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import existing_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.report import answers, data, markdown, page
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import from_records, with_winners
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.bench_report``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``dest``.html, .md and .json, and the presets; files that would not change are not written."""
        reports = []
        for name in options["journals"]:
            report = from_records(Path(name).stem, existing_journal(name))
            report.reproduce = options["reproduce"] or report.reproduce
            reports.append(report)
        dest = options["dest"]
        files = {
            f"{dest}.html": page([(r, pictures(r)) for r in reports]),
            f"{dest}.md": "\n".join(markdown(r) for r in reports),
            f"{dest}.json": json.dumps({"reports": [data(r) for r in reports]}, indent=2) + "\n",
        }
        lines = [line for r in reports for line in answers(r).lines]
        last, directory = reports[-1], options["presets_dir"]
        if directory and last.profile and last.ranked:
            profile, winners = with_winners(load_profile(last.profile, [directory, *options["profile_dirs"]]), last)
            head = f"# Profile {last.profile} with the winners of sweep {last.title} as presets tuned-*.\n"
            path = f"{directory}/{last.profile}.yml"
            files[path] = head + yaml.safe_dump(profile, sort_keys=False, allow_unicode=True, width=120)
            lines += [f"presets in {path} (use them with -e gb10_profile_dirs=['{directory}'])", *winners]
        there = {name: Path(name).read_text(encoding="utf-8") for name in files if Path(name).exists()}
        changed = {Path(name): text for name, text in files.items() if there.get(name) != text}
        for target, text in changed.items() if not self._task.check_mode else ():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return {
            "changed": bool(changed),
            "files": list(files),
            "lines": lines,
            "msg": "\n".join([*lines, f"Report: {dest}.html"]),
        }
