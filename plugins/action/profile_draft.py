# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draft a profile on the controller from a command, a sparkrun recipe, or a model's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import sort_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import (
    LEFT,
    Source,
    commented,
    read_command,
    read_recipe,
    repository,
    to_profile,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Model, read_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    known_images,
    profiles_of,
    read_yaml,
    schema_problems,
)


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.profile_draft``."""

    ROLE = "profile_new"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the profile, the facts of the model, and findings about both."""
        directories = options["profile_dirs"]
        repo = repository(options["repo"])
        try:
            library = Library.load(directories)
            facts = read_facts(Path(options["config"]), repo) if options["config"] else {}
            source = _source(options, repo, facts, library)
            fallback = {"repo": repo, "sglang_version": options["sglang_version"], "image": options["image"]}
            images = known_images(directories)
            profile, findings = to_profile(source, library.knowledge, options["name"], facts, fallback, images)
            findings += [
                Rules("_sglang").finding("profile.schema", None, key=name, problem=problem)
                for name, _colon, problem in (text.partition(": ") for text in schema_problems(profile))
            ]
            findings += resolve(profile, library=_with_facts(library, profile["model"]["repo"], facts)).findings
        except (OSError, ValueError) as problem:
            raise AnsibleActionFail(f"No profile was written: {problem}") from None
        missing = source.left_out
        shown = [str(one) for one in sort_findings(findings) if one.severity != "info" and one.rule != LEFT]
        shown += ["Left out of the source, because:", *(f"  {line}" for line in missing)] if missing else []
        if others := profiles_of(profile["model"]["repo"], directories):
            shown.insert(0, f"There are profiles of this model: {', '.join(others)}")
        return {
            "changed": False,
            "profile": commented(profile, missing),
            "sglang_version": profile["sglang_version"],
            "left_out": missing,
            "facts": json.dumps({**facts, "repo": profile["model"]["repo"]}, indent=2) + "\n" if facts else "",
            "findings": [finding.as_dict() for finding in findings],
            "msg": "\n".join(shown) or "Everything was carried over, and no known rule refuses any of it.",
        }


def _with_facts(library: Library, repo: str, facts: Mapping[str, Any]) -> Library:
    """Return the library with the facts that the role writes beside the profile, by which the plan judges it."""
    if not facts:
        return library
    return replace(library, models={**library.models, repo.lower(): Model(**{**facts, "repo": repo})})


def _source(options: Mapping[str, Any], repo: str, facts: Mapping[str, Any], library: Library) -> Source:
    if options["command"]:
        script = Path(options["command"])
        is_file = len(options["command"]) < 4096 and script.is_file()
        return read_command(script.read_text(encoding="utf-8") if is_file else options["command"])
    if options["recipe"]:
        return read_recipe(read_yaml(Path(options["recipe"])), library.knowledge)
    size = str(options["nodes"])
    flags = ["--model-path", repo, "--tp-size", size, "--nnodes", size]
    flags += ["--mem-fraction-static", "0.8", "--max-running-requests", "8"]
    if facts.get("quantization") == "modelopt_fp4":  # the default runner of experts on SM12x depends on this flag
        flags += ["--quantization", "modelopt_fp4"]
    return Source(argv=flags)
