# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert flag values as the type functions of SGLang's parser do. Private to the collection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from .catalogue import Flag

_READABLE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_FACTORS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class ValueRefused(Exception):
    """A value that the parser refuses; the message gives the parser's reason."""


def readable_int(text: str) -> int:
    """Read ``262144``, ``256Ki`` or ``25.6k``; suffixes are case-sensitive (sglang.srt.utils.common)."""
    match = _READABLE.fullmatch(text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise ValueRefused("neither an integer nor one with a suffix k, M, G, T, Ki, Mi, Gi, Ti") from None
    number, suffix = match.groups()
    if "." in number and suffix.endswith("i"):
        raise ValueRefused(f"decimals are not allowed with the suffix {suffix}")
    return int(Decimal(number) * _FACTORS[suffix])


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json(text: str, constant: Callable[[str], Any] | None = None) -> Any:
    try:
        return json.loads(text, parse_constant=constant)
    except ValueError as problem:
        raise ValueRefused(f"not valid JSON: {problem}") from None


def _graph_backend(text: Any) -> Any:
    if text == "tc_piecewise":
        raise ValueRefused("tc_piecewise was removed; select breakable, full, or disabled")
    return text


def _graph_config(text: str, keys: Mapping[str, Any], retired: bool) -> Any:
    """Check ``--cuda-graph-config``: {phase: {key: value}} with the phases and keys of the release."""
    parsed = _json(text)
    if not isinstance(parsed, dict):
        raise ValueRefused(f"must be a JSON object, got {type(parsed).__name__}")
    for phase, settings in parsed.items():
        if phase not in keys:
            raise ValueRefused(f"unknown phase {phase!r}, expected one of {', '.join(keys)}")
        if not isinstance(settings, dict):
            raise ValueRefused(f"{phase!r} must be a JSON object")
        for key, value in settings.items():
            if key not in keys[phase]:
                raise ValueRefused(f"{phase!r} has no key {key!r}, expected one of {', '.join(keys[phase])}")
            if key == "backend" and retired:
                _graph_backend(value)
    return parsed


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ValueRefused(f"not a valid {kind.__name__}") from None

    return convert


_CONVERTERS: dict[str | None, Callable[[str], Any]] = {
    None: str,
    "str": str,
    "int": _number(int),
    "float": _number(float),
    "loads": _json,
    "json_list_type": lambda text: _json(text, _no_constant),
    "human_readable_int": readable_int,
    "nullable_str": lambda text: None if text in ("", "None") else text,
    "parse_cuda_graph_backend_arg": _graph_backend,
}


def convert(flag: Flag, text: str) -> Any:
    """Return the value that the parser stores for one word; raise ValueRefused if it refuses the word."""
    if flag.kind == "parse_cuda_graph_config_arg":
        value = _graph_config(text, flag.keys, retired="tc_compiler" not in flag.keys.get("decode", ()))
    else:
        # An unknown type function is assumed to accept any text.
        value = _CONVERTERS.get(flag.kind, str)(text)
    if flag.choices is not None and value not in flag.choices:
        raise ValueRefused("not in the choices")
    if flag.action == "LoRAPath" and text.strip().startswith("{") and text.strip().endswith("}"):
        named = _json(text.strip())
        if "lora_name" not in named or "lora_path" not in named:
            raise ValueRefused("a JSON object must have lora_name and lora_path")
    return value
