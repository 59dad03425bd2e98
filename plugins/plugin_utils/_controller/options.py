# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of actions and roles, read from their documentation.

The options of an action are those in the documentation with its name, and those of the fragments that it extends; the
options of a role are those of its argument specs. Options are never listed a second time in an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, TypeVar

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.template import trust_as_template

from .data import MODULES, ROLES, load_yaml, read_yaml

_T = TypeVar("_T")
# Keys that a documented option and an option of an argument spec share.
_SHARED = ("type", "elements", "required", "default", "choices", "aliases")


def module_document(module: str, kind: str) -> Any:
    """Return the DOCUMENTATION, EXAMPLES or RETURN of a module without importing it.

    Ansible's own read_docstring takes 3 to 11 ms longer, in each action.
    """
    code = (MODULES / f"{module}.py").read_text(encoding="utf-8")
    return load_yaml(code.partition(f'\n{kind} = r"""')[2].partition('"""')[0])


def documented_spec(module: str) -> dict[str, dict[str, Any]]:
    """Return the argument spec that the documentation of an action, in plugins/modules/NAME.py, describes."""
    documentation = module_document(module, "DOCUMENTATION")
    shared = import_module("...doc_fragments.shared", __package__).ModuleDocFragment
    found: dict[str, Any] = {}
    for name in documentation.get("extends_documentation_fragment") or []:
        found |= load_yaml(getattr(shared, name.rpartition(".")[2].upper())).get("options") or {}
    return _spec(found | (documentation.get("options") or {}))


def _spec(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    spec = {}
    for name, option in options.items():
        spec[name] = {key: option[key] for key in _SHARED if key in option}
        if "suboptions" in option:
            spec[name]["options"] = _spec(option["suboptions"])
    return spec


def role_spec(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of a role of the collection, by their full names."""
    specs = read_yaml(ROLES / role / "meta" / "argument_specs.yml")
    options: dict[str, dict[str, Any]] = specs["argument_specs"]["main"].get("options") or {}
    return options


def role_options(
    role: str, variables: Mapping[str, Any], template: Callable[[Any], Any], given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of a role's options by their names without the role's prefix, with the declared types.

    A value is ``given`` by the task, else it is that of the variable, else the default in the argument specs;
    ``template`` resolves the last two. Raise AnsibleActionFail for invalid values.
    """
    spec, values = role_spec(role), {}
    for name, option in spec.items():
        short = name.removeprefix(f"{role}_")
        if given and short in given:
            values[name] = given[short]
        elif name in variables:
            values[name] = template(variables[name])
        elif isinstance(default := option.get("default"), str):
            values[name] = template(trust_as_template(default))
    checked = ArgumentSpecValidator(spec).validate(values)
    if checked.error_messages:
        raise AnsibleActionFail(f"Options of role {role}: {'; '.join(checked.error_messages)}")
    return {name.removeprefix(f"{role}_"): value for name, value in checked.validated_parameters.items()}


def from_options(cls: type[_T], options: Mapping[str, Any], **given: Any) -> _T:
    """Return an instance of a dataclass: each field from ``given``, else from the option of the same name.

    Lists become tuples. A field without an option keeps the default of the dataclass.
    """
    values = {**options, **given}
    named = {field.name: values[field.name] for field in fields(cls) if field.name in values}  # type: ignore[arg-type]
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in named.items()})
