# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that options of actions and roles follow their documentation."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.plugin_docs import read_docstring
from ansible.template import Templar
from ansible_collections.gb10.cluster.plugins.doc_fragments.shared import ModuleDocFragment
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import options
from role_samples import role_values

ROOT = Path(__file__).resolve().parents[5]
MODULES = sorted(ROOT.glob("plugins/modules/*.py"))
ACTIONS = sorted(path.stem for path in (ROOT / "plugins" / "action").glob("*.py"))


def test_a_documented_option_keeps_type_default_and_choices() -> None:
    spec = options.documented_spec("load_cell")
    assert spec["url"] == {"type": "str", "required": True}
    assert spec["workloads"]["options"]["max_tokens"] == {"type": "int", "default": 3072}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_documents_are_read_as_ansible_reads_them(path: Path) -> None:
    found = read_docstring(str(path))
    assert found["doc"]["module"] == path.stem
    assert options.module_document(path.stem, "DOCUMENTATION") == found["doc"]
    assert options.module_document(path.stem, "RETURN") == found["returndocs"]


def test_the_fragments_that_a_documentation_names_exist() -> None:
    pages = {path.stem: options.module_document(path.stem, "DOCUMENTATION") for path in MODULES}
    named = {(page, name) for page, doc in pages.items() for name in doc.get("extends_documentation_fragment") or []}
    there = {f"gb10.cluster.shared.{name.lower()}" for name in vars(ModuleDocFragment) if name.isupper()}
    assert {(page, name) for page, name in named if name not in there} == set()


def given(content: Any) -> Iterator[tuple[str, set[str]]]:
    """Return the actions of the collection in a file of tasks, and the options that each task gives."""
    if isinstance(content, list):
        for item in content:
            yield from given(item)
    elif isinstance(content, dict):
        for key, value in content.items():
            name = str(key).removeprefix("gb10.cluster.")
            if name != key and name in ACTIONS and isinstance(value, dict):
                yield name, set(value)
            else:
                yield from given(value)


TASKS = [each for path in sorted(ROOT.glob("roles/*/tasks/*.yml")) for each in given(options.read_yaml(path))]


@pytest.mark.parametrize("action", sorted({name for name, _given in TASKS}))
def test_every_option_that_a_role_gives_to_an_action_is_documented(action: str) -> None:
    loaded = import_module(f"ansible_collections.gb10.cluster.plugins.action.{action}").ActionModule
    role = getattr(loaded, "ROLE", "")
    of_role = {name.removeprefix(f"{role}_") for name in (options.role_spec(role) if role else ())}
    known = of_role | set(options.documented_spec(action))
    assert [sorted(names - known) for name, names in TASKS if name == action and names - known] == []


def test_role_options_are_templated_and_typed() -> None:
    values = role_values("serving_plan", vf_index="1", rdma_mode="restricted")
    assert values["vf_index"] == 1
    assert values["profile"] == "gemma-4-31b-it"
    assert values["rdma_resources"] == ["rdma/gb10"]


def test_a_task_gives_an_option_of_the_role_and_the_argument_specs_have_its_default() -> None:
    templar = Templar(DataLoader(), {"gb10_rdma_mode": "none"})
    values = options.role_options("preflight", {"preflight_min_free_gib": 7}, templar.template, {"refuse": "no"})
    assert (values["refuse"], values["min_free_gib"], values["rdma_mode"]) == (False, 7.0, "none")


def test_an_invalid_value_names_the_option_and_the_role() -> None:
    with pytest.raises(AnsibleActionFail, match=r"role serving_plan: .*serving_plan_transport.*got: tcp"):
        role_values("serving_plan", transport="tcp")


@dataclass(frozen=True)
class Wanted:
    """Some options of an action."""

    names: tuple[str, ...]
    port: int
    mode: str = "default"


def test_a_dataclass_is_built_by_field_name() -> None:
    values = {"names": ["a", "b"], "port": 1, "unrelated": True}
    assert options.from_options(Wanted, values, port=2) == Wanted(("a", "b"), 2)
