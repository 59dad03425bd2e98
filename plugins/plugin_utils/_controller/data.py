# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's own data files, in a checkout and as installed, and the rules whose sentences are data.

A package of checks has its rules in its ``rules.yml``, by their names.
"""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Rule

COLLECTION = Path(__file__).resolve().parents[3]
PLUGINS = COLLECTION / "plugins"
PROFILES = PLUGINS / "profiles"
SWEEPS = PLUGINS / "sweeps"
ROLES = COLLECTION / "roles"
MODULES = PLUGINS / "modules"


def read_yaml(path: Path) -> Any:
    """Parse one of these files."""
    return load_yaml(path.read_text(encoding="utf-8"))


def load_yaml(text: str) -> Any:
    """Parse such a text. With libyaml it takes a tenth of the time: 0.27 s for all rules without it."""
    # Scripts that the README promises to run with Python alone import this file for its paths.
    yaml = import_module("yaml")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def _load(package: str) -> dict[str, Rule]:
    rules = read_yaml(Path(__file__).parents[1] / package / "rules.yml")
    # A case has what the entry of its name has, unless it says otherwise.
    return {name: Rule(**{**rules.get(name.partition("/")[0], {}), **entry}) for name, entry in rules.items()}


class Rules(findings.Rules):
    """The rules of a package of plugin_utils; ``source`` is the origin of what their findings are about."""

    def __init__(self, package: str, source: str = "") -> None:
        super().__init__(partial(_load, package), source)
