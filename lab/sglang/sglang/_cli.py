# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the command line from the flag catalogue of a release, so that it refuses the same flags."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CATALOGUES = Path(os.environ.get("SGLANG_STANDIN_CATALOGUES", "/opt/sglang-standin/catalogue"))
DEFAULT_VERSION = "0.5.12.post1"

_SUFFIXES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2, "g": 1000**3, "G": 1024**3}


def human_int(text: str) -> int:
    """Return 1k as 1000 and 1K as 1024, as SGLang's parser reads them."""
    factor = _SUFFIXES.get(text[-1:], 1)
    return int(float(text[:-1]) * factor) if factor > 1 else int(text)


def nullable(text: str) -> str | None:
    return None if text in {"", "None"} else text


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "loads": json.loads,
    "human_readable_int": human_int,
    "json_list_type": json.loads,
    "nullable_str": nullable,
}


def _option(flag: dict[str, Any]) -> dict[str, Any]:
    action = flag.get("action", "")
    options: dict[str, Any] = {"dest": flag["dest"], "default": flag.get("default")}
    if action == "BooleanOptional":
        return options | {"action": argparse.BooleanOptionalAction}
    if action == "DeprecatedStoreConst":
        return options | {"action": "store_const", "const": flag.get("const")}
    if flag.get("nargs") == 0:
        return options | {"action": "store_true", "default": flag.get("default") or False}
    options["type"] = _TYPES.get(flag.get("type", "str"), str)
    for key in ("choices", "nargs", "const"):
        if flag.get(key) is not None:
            options[key] = flag[key]
    if flag.get("required"):
        options["required"] = True
    return options


def version() -> str:
    """Return the release that is simulated."""
    return os.environ.get("SGLANG_STANDIN_VERSION", DEFAULT_VERSION)


def build_parser(release: str, catalogues: Path = CATALOGUES) -> argparse.ArgumentParser:
    """Return a parser with every flag of the release; abbreviations are allowed, as in the real one."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    add_flags(parser, release, catalogues)
    return parser


def add_flags(parser: argparse.ArgumentParser, release: str, catalogues: Path = CATALOGUES) -> None:
    """Add every flag of the release to a parser."""
    flags = json.loads((catalogues / f"{release}.json").read_text(encoding="utf-8"))["flags"]
    for flag in flags:
        negatives = {name for name in flag.get("aliases", []) if name.startswith("--no-")}
        boolean = flag.get("action") == "BooleanOptional"
        names = [flag["flag"], *(name for name in flag.get("aliases", []) if not (boolean and name in negatives))]
        parser.add_argument(*names, **_option(flag))


def parse(argv: list[str]) -> dict[str, Any]:
    """Return the arguments under the names of 0.5.14 and later (``tp_size``); exit 2 if they are refused."""
    values = vars(build_parser(version()).parse_args(argv))
    old = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size", "expert_parallel_size": "ep_size"}
    return {old.get(key, key): value for key, value in values.items()}
