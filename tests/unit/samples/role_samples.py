# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of a role with the values that its tasks see."""

from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import ROLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import role_options


def role_values(role: str, **changes: Any) -> dict[str, Any]:
    """Return a role's options by their names without its prefix: its defaults, changed as asked."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROLES / role / "defaults" / "main.yml"), trusted_as_template=True)
    variables = defaults | {f"{role}_{name}": value for name, value in changes.items()}
    return role_options(role, variables, Templar(loader=loader, variables=variables).template)
