# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules without Ansible's library, on hosts as long as they change nothing, and on the controller.

A host compiles Ansible's library for each module that it starts, which takes most of the 0.45 s of CPU of a module that
finds nothing to do (docs/growth.md). The modules below need of it only what ``AnsibleModule`` has here. Where one of
them would change something or fails, Ansible starts it as usual. meta/runtime.yml leads the modules here.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import COLLECTION

# Modules that read, and two that also write where their result says that nothing has changed: host_lock a record below
# /run, jit_cache the time at which a directory was used
READING = (
    "cabling_info",
    "fabric_ping",
    "host_lock",
    "jit_cache",
    "k3s_service_info",
    "model_stock_info",
    "pf_info",
    "preflight_info",
    "roce_gid_info",
)
# Modules that are asked in check mode first
CONVERGING = ("host_files", "nic_qos", "node_tuning", "sriov_vf")
# A value of netplan_transaction's state with which it only reads
READ = {"netplan_transaction": "checked"}
OWN = "ansible_collections.gb10.cluster."
_IMPORT = re.compile(r"^ *from (\.+[\w.]*|ansible_collections\.gb10\.cluster\.[\w.]+) import (\([^)]*\)|.+)$", re.M)


class Library:
    """Imports the collection's modules on the host from their sources, by their full names."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        package = any(other.startswith(f"{name}.") for other in self._sources)
        found: Any = self
        return ModuleSpec(name, found, is_package=package) if package or name in self._sources else None

    def create_module(self, _spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = self._sources.get(module.__name__, "")
        exec(compile(source, module.__name__, "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        return self._sources.get(name, "")


class Ended(BaseException):
    """A module has its result."""


class AnsibleModule:
    """What these modules use of Ansible's class. The controller has checked their options."""

    def __init__(self, params: dict[str, Any], check_mode: bool, diff: bool = False, **_rules: Any) -> None:
        self.params, self.check_mode, self._diff = params, check_mode, diff
        self._warnings: list[str] = []

    def exit_json(self, **result: Any) -> NoReturn:
        raise Ended(result | ({"warnings": self._warnings} if self._warnings else {}))

    def fail_json(self, **result: Any) -> NoReturn:
        self.exit_json(**result, failed=True)

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def get_bin_path(self, name: str) -> str | None:
        # As Ansible's, it finds what only root has in its path.
        return shutil.which(name) or shutil.which(name, path="/sbin:/usr/sbin:/usr/local/sbin")

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        # This class runs where the modules run, without the library that their own calls are for.
        own = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", env=own, check=False)
        return done.returncode, done.stdout, done.stderr


def outcome(main: Callable[[], None], make: Callable[..., Any]) -> Any:
    """Return with what a module ends if ``make`` stands for Ansible's class."""
    try:
        FunctionType(main.__code__, {**main.__globals__, "AnsibleModule": make})()
    except Ended as end:
        return end.args[0]
    raise AssertionError("a module ends with exit_json or fail_json")


BEGIN = f"""
from __future__ import annotations
import base64, importlib, json, os, shutil, subprocess, sys, zlib
from functools import partial
from importlib.machinery import ModuleSpec
from types import FunctionType, SimpleNamespace

{inspect.getsource(Library)}
{inspect.getsource(Ended)}
{inspect.getsource(AnsibleModule)}
{inspect.getsource(outcome)}
def main(name, sources, options, check):
    sys.modules["ansible.module_utils.basic"] = SimpleNamespace(AnsibleModule=None)
    sys.meta_path.insert(0, Library(json.loads(zlib.decompress(base64.b64decode(sources)))))
    main = importlib.import_module(name).main
    print(json.dumps(outcome(main, partial(AnsibleModule, json.loads(options), check))))

"""


def imported(name: str, source: str) -> Iterator[str]:
    """Yield the full names of the collection's modules that a source imports."""
    for origin, names in _IMPORT.findall(source):
        dots = len(origin) - len(origin.lstrip("."))
        parent = ".".join(filter(None, [*name.split(".")[:-dots], origin.lstrip(".")])) if dots else origin
        inner = [f"{parent}.{each.split()[0]}" for each in names.strip("()").split(",") if each.strip()]
        yield from (each if path_of(each).is_file() else parent for each in inner)


def path_of(name: str) -> Path:
    return COLLECTION / (name.removeprefix(OWN).replace(".", "/") + ".py")


@cache
def shipped(module: str) -> str:
    """Return the sources of a module and of everything that it imports, compressed."""
    sources: dict[str, str] = {}
    waiting = [f"{OWN}plugins.modules.{module}"]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = path_of(name).read_text(encoding="utf-8")
            waiting += imported(name, sources[name])
    return base64.b64encode(zlib.compress(json.dumps(sources).encode())).decode()


class Options(NamedTuple):
    """A module's options with types and defaults, and the values that no result may show."""

    values: dict[str, Any]
    secrets: set[str]


def validated(main: Callable[[], None], given: Mapping[str, Any], here: bool = False) -> Options | None:
    """Return the options of a module; None if Ansible has to check them where it runs.

    It does for invalid ones, and for paths that are complete only on a host; ``here`` is the controller.
    """

    def ask(argument_spec: Any, supports_check_mode: bool, **rules: Any) -> NoReturn:
        raise Ended((argument_spec, rules))

    spec, rules = outcome(main, ask)
    try:
        # Ansible marks the strings of its options, and PyYAML writes plain ones only.
        plain = json.loads(json.dumps(given))
    except TypeError:  # such as a date of YAML
        return None
    checked = ArgumentSpecValidator(spec, **rules).validate(plain)
    if checked.error_messages or not (here or complete(spec, plain)):
        return None
    return Options(checked.validated_parameters, checked._no_log_values)


def complete(spec: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether no path has a home directory or a variable: the controller would replace it with its own."""
    for name, rule in spec.items():
        text = json.dumps(given.get(name))
        if "path" in (rule.get("type"), rule.get("elements")) and ("$" in text or "~" in text):
            return False
        many = given.get(name) or []
        if "options" in rule and not (isinstance(many, list) and all(complete(rule["options"], one) for one in many)):
            return False
    return True


class ActionModule(ActionBase):
    """Runs the module of the task, first without Ansible's library."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        known = task_vars or {}
        if self._task.action.endswith(".host_files"):
            # Ansible writes all arguments as one text into the host's journal, in which it does not find a secret
            # content with a line feed. The module cannot switch that off: Ansible overwrites what it gives to
            # AnsibleModule.
            known = {**known, "ansible_no_target_syslog": True}
        told = without_library(self, python_of(self, known))
        return result | (self._execute_module(task_vars=known) if told is None else told)


def python_of(action: ActionBase, known: Mapping[str, Any]) -> str:
    """Return the host's Python, as set in the inventory or as Ansible has found it; empty if it is not known yet."""
    found = known.get("ansible_python_interpreter")
    found = found or (known.get("ansible_facts") or {}).get("discovered_interpreter_python")
    return str(action._templar.template(found)) if found else ""


def without_library(action: ActionBase, python: str, **added: str) -> dict[str, Any] | None:
    """Return the result of a module that succeeds, and of one that converges if it changes nothing; else None.

    ``added`` are options besides those of the task.
    """
    task, name = action._task, action._task.action.rpartition(".")[2]
    given = {**task.args, **added}
    check = bool(task.check_mode) or name in CONVERGING
    if name not in READING + CONVERGING and given.get("state") != READ.get(name, "none"):
        return None
    foreign = task.delegate_to or task.async_val or any(task.environment or [])
    if foreign or not python.startswith("/") or not action._is_pipelining_enabled("new"):
        return None
    module = f"{OWN}plugins.modules.{name}"
    options = validated(importlib.import_module(module).main, given)
    if options is None:
        return None
    words = ", ".join(map(ascii, (module, shipped(name), json.dumps(options.values), check)))
    # Without -I, a file of the current directory would be imported in place of Python's own.
    done = action._low_level_execute_command(f"{shlex.quote(python)} -I -", in_data=f"{BEGIN}main({words})\n".encode())
    told = settled(done, options.secrets)
    return None if told and told["changed"] and name in CONVERGING else told


def settled(done: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any] | None:
    """Return the result that a program of a host printed last, if it succeeded; else None."""
    try:
        told = json.loads(done["stdout"].splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        return None
    if done["rc"] != 0 or not isinstance(told, dict) or told.get("failed") or not isinstance(told.get("changed"), bool):
        return None
    if any(json.dumps(secret)[1:-1] in done["stdout"] for secret in secrets):
        return None
    # Ansible acts on these keys. The modules return none of them but facts, which Ansible cleans.
    acted = ("_ansible", "ansible_")
    return {key: value for key, value in told.items() if key == "ansible_facts" or not key.startswith(acted)}
