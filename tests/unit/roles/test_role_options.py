# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the argument specs of every role agree with its defaults and with the collection's terms."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ansible.parsing.plugin_docs import read_docstring
from ansible_collections.gb10.cluster.plugins.module_utils._common import terms
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import REQUIREMENTS

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted((ROOT / "roles").iterdir())
MODULES = sorted((ROOT / "plugins" / "modules").glob("*.*"))
TERMS = {
    "rdma_mode": get_args(terms.RdmaMode),
    "transport": get_args(terms.Transport),
}


def entry_points(role: Path) -> dict[str, dict[str, Any]]:
    """Return the options of every entry point of a role."""
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    return {name: entry.get("options") or {} for name, entry in specs.items()}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_specs_and_defaults_have_the_same_options_and_values(role: Path) -> None:
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    declared: dict[str, Any] = {}
    for entry_point, options in entry_points(role).items():
        for name, option in options.items():
            declared[name] = option
            assert name.startswith(f"{role.name}_")
            if "default" in option:
                assert option["default"] == defaults[name], f"{entry_point}: {name}"
                # antsibull-docs refuses a template as the default of an option that is not text
                assert option.get("type", "str") in ("str", "path") or "{{" not in str(option["default"]), name
    assert set(defaults) == {name for name, option in declared.items() if not option.get("required")}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_check_of_the_inventory_knows_all_that_a_spec_requires(role: Path) -> None:
    """The playbooks of site switch Ansible's own check of the specs off (rolespec_validate)."""
    described = {"description", "default", "no_log", "version_added"}
    for options in entry_points(role).values():
        for name, option in options.items():
            assert set(option) <= {*REQUIREMENTS, *described}, name


def test_choices_are_the_terms_of_the_collection() -> None:
    options = {f"role {role.name}: {n}": o for role in ROLES for e in entry_points(role).values() for n, o in e.items()}
    for module in MODULES:
        documentation = read_docstring(str(module))["doc"] or {}
        declared = documentation.get("options") or {}
        options |= {f"module {module.stem}: {name}": option for name, option in declared.items()}
    checked = 0
    for place, option in options.items():
        for term, choices in TERMS.items():
            if place.endswith(term) and "choices" in option:
                assert tuple(option["choices"]) == choices, place
                checked += 1
    assert checked


def test_every_role_takes_fields_of_other_managers_only_if_its_owner_says_so() -> None:
    found: dict[str, set[Any]] = {}
    for path in (ROOT / "roles").glob("*/tasks/*.yml"):
        waiting = list(yaml.safe_load(path.read_text(encoding="utf-8")) or [])
        while waiting:
            task = waiting.pop()
            waiting += task.get("block", [])
            if applied := task.get("gb10.cluster.api_apply"):
                found.setdefault(path.parts[-3], set()).add(applied.get("take_fields"))
    assert set(found) == {"device_plugins", "gateway", "monitoring", "multus", "sglang"}
    for role, given in found.items():
        assert given == {f"{{{{ {role}_take_fields }}}}"}
        defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8"))
        assert defaults[f"{role}_take_fields"] == "{{ gb10_take_fields | default(false) }}"
