# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a mapping of SGLang settings as command-line words for one release. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Catalogue, Flag, History
from .items import Item
from .owned import OWNERS
from .translate import translate

ENV_RANGES: dict[str, tuple[str | None, str | None]] = {"SGLANG_ENABLE_SPEC_V2": (None, "0.5.13")}
"""Variables that SGLang reads only in these releases; later releases always do what they enabled (environ.py)."""


def translate_env(
    env: Mapping[str, str], written_for: Version, version: Version, where: str
) -> tuple[dict[str, str], list[Finding]]:
    """Remove variables that only older releases read, because the given release always does what they enable."""
    kept: dict[str, str] = {}
    findings: list[Finding] = []
    for key, value in env.items():
        extent = ENV_RANGES.get(key)
        if extent is not None and written_for.within(*extent) and not version.within(*extent):
            reason = f"left out: SGLang {version} always does what it enabled"
            findings.append(Finding("info", "translate.changed", key, value, reason, "Nothing to do", where))
        else:
            kept[key] = value
    return kept, findings


def topology_argv(topology: Mapping[str, int]) -> list[str]:
    """Return the flags of the parallel sizes as rank 0 gets them."""
    argv = ["--tp-size", str(topology["tp"]), "--pp-size", str(topology["pp"]), "--ep-size", str(topology["ep"])]
    if topology["nodes"] > 1:
        argv += ["--nnodes", str(topology["nodes"]), "--node-rank", "0", "--dist-init-addr", "192.0.2.1:20000"]
    return argv


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, bool)) else str(value)


def _mismatch(value: Any, flag: Flag | None) -> tuple[str, str, str] | None:
    """Return rule, reason and remedy if a switch is given a value, or a flag with a value is given true or false."""
    if flag is None or value is None:
        return None
    if isinstance(value, bool) and not flag.is_switch and flag.nargs != "?":
        example = f", such as {flag.default!r}" if flag.default is not None else ""
        return "flag.missing_value", "is a flag with a value, not a switch", f"Give it a value{example}"
    if flag.is_switch and not isinstance(value, bool):
        return "flag.unexpected_value", "is a switch", "Write true or false"
    return None


def _item(key: str, value: Any, flag: Flag | None) -> Item | None:
    """Return one setting as a flag; None if leaving out the flag has the same effect."""
    name = key.replace("_", "-")
    option, negative = f"--{name}", f"--no-{name}"
    if value is True:
        return Item(option, option)
    if value is False and flag is not None and negative in flag.names:
        return Item(negative, negative)
    if value is None or value is False:
        return None
    if isinstance(value, (list, tuple)):
        whole = flag is not None and flag.nargs is None and flag.kind in ("loads", "json_list_type")
        words = (json.dumps(value),) if whole else tuple(_word(part) for part in value)
        return Item(option, option, words)
    word = _word(value)
    # A value that begins with a dash would be read as a flag; the form --flag=value prevents this.
    return Item(option, option, (word,), inline=word.startswith("-"))


def render_argv(
    server_args: Mapping[str, Any],
    catalogue: Catalogue,
    history: History,
    where: str = "",
    written_for: Catalogue | None = None,
) -> tuple[list[str], list[Finding]]:
    """Return the flags in the release's spelling, with findings about translated and untranslatable settings."""
    findings: list[Finding] = []
    items: list[Item] = []
    for key, value in server_args.items():
        if key in OWNERS:
            remedy = f"Give it under {OWNERS[key]}" if "." in OWNERS[key] else "Remove it"
            findings.append(
                Finding("error", "profile.key.owned", key, value, f"follows from {OWNERS[key]}", remedy, where)
            )
            continue
        option = "--" + key.replace("_", "-")
        flag = catalogue.options.get(option) or history.known(option)
        mismatch = _mismatch(value, flag)
        if mismatch is not None:
            rule, reason, remedy = mismatch
            findings.append(Finding("error", rule, key, value, reason, remedy, where))
            continue
        item = _item(key, value, flag)
        if item is not None:
            items.append(item)
    done, notes = translate(items, catalogue, history, written_for)
    # The parser reports unknown flags itself, with a suggestion.
    findings += [note for note in notes if note.severity != "error" or history.span(note.key) is not None]
    return [word for item in done for word in item.argv], findings
