# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the command-line parser of an unpacked SGLang release, without torch or a GPU.

``sglang_catalogue.py`` starts this file in a separate process, because it replaces a large part of the import system.
``python _sglang_release.py DIRECTORY catalogue`` prints every flag of the parser as JSON, and
``python _sglang_release.py DIRECTORY parse`` reads command lines (one JSON list of strings per line) and answers each
with ``{"ok": …, "message": …, "values": {…}}``.

The parser needs three parts of the release's import chain: the release's pure modules, msgspec (the real package), and
the names of heavy packages (torch, transformers, triton …), whose behaviour does not affect any flag.
"""

import argparse
import contextlib
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import logging
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "roles" / "sglang" / "files"))

import ask_sglang

REAL_THIRD_PARTY = frozenset({"msgspec", "packaging"})
"""Packages that build the parser (structs that are introspected), so that the real ones are needed."""

ABSENT = frozenset({"torch_npu", "torch_musa", "mlx", "torch_xla", "habana_frameworks"})
"""Packages whose presence alone tells SGLang that it runs on other hardware."""

SHELLS = ("sglang", "sglang.srt.configs", "sglang.kernels")
"""Packages whose ``__init__`` imports models or kernels; their modules can be imported without running it."""

GPU_CODE = "sglang.kernels.ops.attention"
"""Package of kernels (0.5.16 and later), which the import chain names but the parser never calls."""

VALUES: dict[str, dict[str, Any]] = {
    **ask_sglang.VALUES,
    "dill": {"dumps": lambda _value: b""},
    "orjson": {"loads": json.loads, "JSONDecodeError": json.JSONDecodeError},
}
"""Values that modules read while they load; all other names only have to exist."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Returns empty modules for SGLang's heavy packages and stubs for third-party packages that are not installed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        top = fullname.partition(".")[0]
        if fullname in SHELLS:
            spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = [str(self.root.joinpath(*fullname.split(".")))]
            return spec
        if fullname in VALUES or fullname == GPU_CODE or fullname.startswith(GPU_CODE + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if top in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if top == "sglang" or top in sys.stdlib_module_names or top in REAL_THIRD_PARTY:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = ask_sglang.Stub(spec.name)
        if spec.submodule_search_locations is not None:
            module.__path__ = list(spec.submodule_search_locations)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        for name, value in VALUES.get(module.__name__, {}).items():
            setattr(module, name, value)


def build_parser(root: Path) -> argparse.ArgumentParser:
    """Return the parser of the release unpacked at ``root`` (the directory that contains ``sglang/``)."""
    sys.meta_path.insert(0, _Finder(root))
    sys.path.insert(0, str(root))
    module = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser(prog="sglang")
    module.ServerArgs.add_cli_args(parser)
    return parser


DEPRECATED_HELP = re.compile(r"\W*(note: \S+ is )?deprecated\b", re.IGNORECASE)
"""Matches the help of a flag that is itself deprecated, but not a later "replaces the deprecated --x"."""


def describe(action: argparse.Action) -> dict[str, Any]:
    """Return one flag as plain data; missing keys have argparse's default."""
    names = list(action.option_strings)
    kind = type(action).__name__.strip("_").removesuffix("Action")
    help_text = " ".join((action.help or "").split())
    if help_text == argparse.SUPPRESS:
        help_text = ""
    has_default = action.default is not argparse.SUPPRESS and (action.nargs != 0 or kind == "BooleanOptional")
    deprecated = kind.startswith("Deprecated") or DEPRECATED_HELP.match(help_text) is not None
    constant = getattr(action, "const_value", None)
    entry: dict[str, Any] = {
        "flag": names[0],
        "aliases": names[1:] or None,
        "dest": action.dest,
        "action": None if kind == "Store" else kind,
        "type": None if action.type is None else getattr(action.type, "__name__", type(action.type).__name__),
        "nargs": action.nargs,
        "default": _plain(action.default) if has_default else None,
        "choices": None if action.choices is None else sorted((_plain(value) for value in action.choices), key=str),
        "keys": _plain(getattr(sys.modules.get(action.type.__module__), "ALLOWED_KEYS_PER_PHASE", None))
        if getattr(action.type, "__name__", "") == "parse_cuda_graph_config_arg"
        else None,
        "const": _plain(action.const if action.nargs == "?" else constant),
        "required": action.required or None,
        "deprecated": deprecated or None,
        "replacement": getattr(action, "new_flag", None),
        "error": getattr(action, "error_message", None),
        "help": help_text if deprecated else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return JSON data for a default or a choice: enumeration members by value, sets in order."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=str)
    return str(value)


def try_parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Parse one command line, and return the result."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured), contextlib.redirect_stdout(captured):
            values = vars(parser.parse_args(list(argv)))
    except SystemExit as end:
        lines = captured.getvalue().strip().splitlines()
        return {"ok": False, "message": lines[-1] if lines else f"exit {end.code}", "values": {}}
    except Exception as problem:  # a type function of the release may raise anything, and the server would die of it
        return {"ok": False, "message": f"{type(problem).__name__}: {problem}", "values": {}}
    given = {key: _plain(value) for key, value in values.items() if value != parser.get_default(key)}
    return {"ok": True, "message": "", "values": given}


def main(argv: Sequence[str]) -> int:
    """Run one of the two commands that the module docstring describes."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        parser = build_parser(Path(argv[0]))
    if argv[1] == "catalogue":
        json.dump([describe(action) for action in parser._actions if action.dest != "help"], sys.stdout)
    else:
        for line in sys.stdin:
            json.dump(try_parse(parser, json.loads(line)), sys.stdout)
            print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
