# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the variables of the collection: those of its roles and the shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from .._paths import ROLES
from .._yaml import read_yaml

SHARED_VARIABLES = ROLES.parent / "meta" / "shared_variables.yml"

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """Every variable with its spec, by the role or prefix that owns it."""

    shared: Mapping[str, Spec]
    command_line: Mapping[str, Spec]
    roles: Mapping[str, Mapping[str, Spec]]

    def owner(self, name: str) -> str:
        """Return the prefix that owns a name: ``gb10``, a role, or none; ``gb10_lab_`` belongs to the lab."""
        if name.startswith("gb10_"):
            return "" if name.startswith("gb10_lab_") else "gb10"
        return max((role for role in self.roles if name.startswith(f"{role}_")), key=len, default="")

    def names(self, owner: str) -> Mapping[str, Spec]:
        """Return the variables with a prefix."""
        return self.shared if owner == "gb10" else self.roles.get(owner, {})


@cache
def load_known() -> Known:
    """Read the argument specs and the shared variables of this collection."""
    shared: dict[str, Spec] = {}
    command_line: dict[str, Spec] = {}
    for group in read_yaml(SHARED_VARIABLES):
        for name, spec in group["variables"].items():
            (command_line if spec["where"] == "command line" else shared)[name] = spec
    roles = {}
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entry_points = read_yaml(path)["argument_specs"].values()
        roles[path.parts[-3]] = {
            name: spec for point in entry_points for name, spec in (point.get("options") or {}).items()
        }
    return Known(shared, command_line, roles)
