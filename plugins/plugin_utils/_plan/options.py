# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the options of role serving_plan from the variables of a host. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from ansible.template import Templar
from ansible.utils.vars import load_extra_vars

from .._controller.options import role_options
from .._paths import ROLES
from .._variables.values import load_known

ROLE = "serving_plan"
PROFILE, PRESET = "serving_plan_profile", "serving_plan_preset"


def serving_defaults(loader: Any) -> dict[str, Any]:
    """Return the defaults of the role as templates."""
    defaults: dict[str, Any] = loader.load_from_file(f"{ROLES / ROLE}/defaults/main.yml", trusted_as_template=True)
    return defaults


def serving_options(loader: Any, values: Mapping[str, Any], wrong: Set[str] = frozenset()) -> dict[str, Any]:
    """Return the options for the variables of a host and those given with -e, without the ``wrong`` variables.

    Raise AnsibleActionFail for an option of another type.
    """
    own, extra, known, defaults = dict(values), load_extra_vars(loader), load_known(), serving_defaults(loader)
    profile = own.get(PROFILE, defaults[PROFILE])
    if "preset" not in extra and extra.get("profile", profile) != profile:
        # As vars/command_line.yml of the playbooks: a preset of the inventory belongs to its profile.
        own.pop(PRESET, None)
    for name, value in extra.items():
        own |= {known.command_line[name]["sets"]: value} if name in known.command_line else {}
    variables = defaults | {name: value for name, value in own.items() if name not in wrong}
    return role_options(ROLE, variables, Templar(loader, variables).template)
