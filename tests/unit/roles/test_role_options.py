# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that argument specs, defaults and values of the roles agree, and that no role reads what another registered."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.plugin_docs import read_docstring
from ansible.template import Templar
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


FILES_OF_ROLES = Path(__file__).resolve().parents[3] / "roles"
READS = ("defaults", "handlers", "tasks", "templates", "vars")


def registered(content: Any) -> Iterator[str]:
    """Return the names that tasks register, also those in blocks."""
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, dict):
            if isinstance(item.get("register"), str):
                yield item["register"]
            for value in item.values():
                yield from registered(value)


def test_no_role_reads_a_register_of_another_role() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for path in sorted([*FILES_OF_ROLES.glob("*/tasks/*.yml"), *FILES_OF_ROLES.glob("*/handlers/*.yml")]):
        for name in registered(yaml.safe_load(path.read_text(encoding="utf-8"))):
            owners[name].add(path.relative_to(FILES_OF_ROLES).parts[0])
    assert len(owners) > 50
    found = []
    for path in sorted(path for kind in READS for path in FILES_OF_ROLES.glob(f"*/{kind}/**/*") if path.is_file()):
        role = path.relative_to(FILES_OF_ROLES).parts[0]
        code = re.sub(r"(?m)^\s*#.*$", "", path.read_text(encoding="utf-8"))
        found += [f"{path}: {word}" for word in set(re.findall(r"\w+", code)) if role not in owners.get(word, {role})]
    assert found == []


VALUES = yaml.safe_load((ROOT / "tests" / "unit" / "samples" / "role_values.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("place", "given", "value"), [(place, *case) for place in VALUES for case in VALUES[place]])
def test_a_variable_has_its_value(place: str, given: dict[str, Any], value: Any) -> None:
    file, name = place.split()
    loader = DataLoader()
    known = loader.load_from_file(str(ROOT / file), trusted_as_template=True)
    found = Templar(loader=loader, variables={**known, **given}).template(known[name])
    assert (found, isinstance(found, bool)) == (value, isinstance(value, bool))


@pytest.mark.parametrize(("given", "value"), [(0, 0), ("0", "0"), (1, 1), ("", "omitted")])
def test_a_swappiness_of_0_reaches_the_module(given: int | str, value: int | str) -> None:
    loader = DataLoader()
    (task,) = loader.load_from_file(str(ROOT / "roles/node_tuning/tasks/main.yml"), trusted_as_template=True)
    known = Templar(loader=loader, variables={"node_tuning_swappiness": given, "omit": "omitted"})
    assert known.template(task["gb10.cluster.node_tuning"]["swappiness"]) == value
