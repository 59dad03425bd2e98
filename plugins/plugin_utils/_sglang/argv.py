# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check an SGLang command line as the release's own argparse would, but report every problem at once.

Private to the collection. argparse stops at the first error; this parser continues. It accepts the same words and
stores the same values as argparse: long options match by unique prefix, ``--flag=value`` gives exactly one value, a
word that begins with a dash is a value only if it is a negative number or contains a space, and the last of repeated
flags wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Rule, Rules

from .catalogue import Catalogue, Flag, History, Item, Parsed, canonical, spelling

RULES = Rules(
    {
        "argparse.abbrev": Rule(
            "is an abbreviation of {full}; a later release may make it ambiguous", "Write {full}", severity="info"
        ),
        "flag.ambiguous": Rule("could match {candidates}", "Write the flag in full"),
        "flag.choice": Rule("SGLang {version} does not accept this value{others}", "{hint}Choose one of {choices}"),
        "flag.deprecated": Rule(
            "is deprecated and will be removed in a later release", "Use {other} instead", severity="warning"
        ),
        "flag.deprecated/help": Rule(
            "is deprecated and will be removed in a later release", "{help}", severity="warning"
        ),
        "flag.help": Rule("prints the help and ends: no server starts", "Remove it"),
        "flag.missing_value": Rule("expects {wanted}", "Write {key} VALUE"),
        "flag.positional": Rule("the server takes no positional arguments", "Remove it, or write its flag before it"),
        "flag.positional/switch": Rule(
            "the server takes no positional arguments", "Remove it: {before} takes no value"
        ),
        "flag.positional/single": Rule(
            "the server takes no positional arguments", "Remove it, or quote it: {before} takes one value"
        ),
        "flag.removed": Rule("{error}", "Remove it"),
        "flag.removed/other": Rule("{extent}; SGLang {version}: {lies}", "{instead}"),
        "flag.renamed": Rule("{extent}; SGLang {version}: {lies}", "{instead}"),
        "flag.repeated": Rule("is given more than once; the last one counts", "Give it once", severity="warning"),
        "flag.required": Rule("is required", "Add {key} VALUE"),
        "flag.too_new": Rule("{extent}; SGLang {version}: {lies}", "{instead}"),
        "flag.type": Rule("{error}", "Correct the value"),
        "flag.type/number": Rule("{error}", "Give a value of type {kind}"),
        "flag.unexpected_value": Rule("takes no value", "Write {key} alone or leave it out"),
        "flag.unknown": Rule(
            "SGLang {version} does not have this flag", "Look it up in the release's flags, or remove it"
        ),
        "flag.unknown/similar": Rule("SGLang {version} does not have this flag", "Did you mean {close}?"),
    }
)

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


_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
UNSET = object()


class _Reader:
    """Parses the words from left to right; it records every problem as a finding and continues after it."""

    def __init__(self, catalogue: Catalogue, history: History, argv: Sequence[str]) -> None:
        self.catalogue, self.history, self.argv = catalogue, history, argv
        self.result = Parsed()

    def report(self, rule: str, key: str, value: Any = None, **words: Any) -> None:
        version = self.catalogue.version
        self.result.findings.append(RULES.finding(rule, value, key=key, version=version, **words))

    def is_option(self, word: str) -> bool:
        """Return whether argparse takes a word for a flag rather than for a value."""
        if not word.startswith("-") or word == "-":
            return False
        name = word.partition("=")[0]
        if word in self.catalogue.options or name in self.catalogue.options or name in ("-h", "--help"):
            return True
        if self.matches(name):
            return True
        return not _NEGATIVE_NUMBER.fullmatch(word) and " " not in word

    def matches(self, name: str) -> list[str]:
        """Return the flags that begin with a prefix."""
        if not name.startswith("--"):
            return ["-h"] if name.startswith("-h") else []
        found = [option for option in self.catalogue.options if option.startswith(name)]
        return found + (["--help"] if "--help".startswith(name) else [])

    def run(self) -> Parsed:
        index = 0
        while index < len(self.argv):
            word = self.argv[index]
            if word == "--":
                self.extra(self.argv[index:])
                break
            if self.is_option(word):
                index = self.option(index)
            else:
                self.extra([word])
                index += 1
        self.require()
        self.deprecations()
        return self.result

    def extra(self, words: Sequence[str]) -> None:
        before = self.result.items[-1] if self.result.items else None
        rule, flag = "flag.positional", before.flag if before else None
        if flag is not None and (flag.is_switch or flag.nargs is None):
            rule = "flag.positional/switch" if flag.is_switch else "flag.positional/single"
        for word in words:
            self.report(rule, word, before=before and before.option)

    def option(self, index: int) -> int:
        word = self.argv[index]
        name, equals, text = word.partition("=")
        if word in self.catalogue.options:
            name, equals, text = word, "", ""
        flag, full = self.catalogue.options.get(name), name
        values = takewhile(lambda one: one != "--" and not self.is_option(one), self.argv[index + 1 :])
        words = (text,) if equals else tuple(values)
        if flag is None:
            candidates = self.matches(name)
            if "-h" in candidates or "--help" in candidates or name in ("-h", "--help"):
                self.report("flag.help", name)
                return index + 1
            if len(candidates) != 1:
                self.unknown(name, words, bool(equals), candidates)
                return index + 1 if equals else index + 1 + len(words)
            full = candidates[0]
            flag = self.catalogue.options[full]
            former = self.history.known(name)
            if former is None:
                self.report("argparse.abbrev", name, text or None, full=full)
            else:
                item = Item(name, name, words, bool(equals))
                self.report("flag.renamed", name, text or None, lies=f"reads as {full}", **self.renamed(item))
        if equals and flag.is_switch:
            self.report("flag.unexpected_value", name, text)
        used = len(words) if equals and not flag.is_switch else self.arity(flag, name, words)
        self.store(Item(full, name, words[:used], bool(equals and used), flag), flag)
        return index + 1 if equals else index + 1 + used

    def arity(self, flag: Flag, name: str, words: tuple[str, ...]) -> int:
        """Return how many of the following words belong to the flag."""
        if flag.is_switch:
            return 0
        most = flag.nargs if isinstance(flag.nargs, int) else 1
        used = len(words) if flag.nargs in ("+", "*") else min(len(words), most)
        wanted = (
            "one value" if flag.nargs is None else "at least one value" if flag.nargs == "+" else f"{flag.nargs} values"
        )
        short = isinstance(flag.nargs, int) and used < flag.nargs
        if short or (used == 0 and flag.nargs in (None, "+")):
            self.report("flag.missing_value", name, wanted=wanted)
        return used

    def store(self, item: Item, flag: Flag) -> None:
        if any(before.flag is flag for before in self.result.items):
            self.report("flag.repeated", item.option, list(item.words) or None)
        self.result.items.append(item)
        value = self.value(item, flag)
        if value is not UNSET:
            self.result.values.update(canonical(self.history, flag, value))
            self.result.stored[flag.dest] = value

    def value(self, item: Item, flag: Flag) -> Any:
        """Return the value that the parser stores; UNSET if the parser refuses it or the flag has no effect."""
        if flag.action == "Deprecated":
            if flag.error:
                self.report("flag.removed", item.option, error=flag.error)
            return UNSET
        if flag.action == "DeprecatedStoreConst" and flag.const is not None:
            values = [self.one(item, flag, word) for word in item.words]
            return UNSET if UNSET in values else flag.const
        if flag.is_switch:
            return not item.option.startswith("--no-") if flag.action == "BooleanOptional" else True
        if not item.words:
            return flag.const if flag.nargs == "?" else ([] if flag.nargs == "*" else UNSET)
        values = [self.one(item, flag, word) for word in item.words]
        if any(value is UNSET for value in values):
            return UNSET
        return values if flag.nargs in ("+", "*") or isinstance(flag.nargs, int) else values[0]

    def one(self, item: Item, flag: Flag, word: str) -> Any:
        try:
            return convert(flag, word)
        except ValueRefused as refused:
            if flag.choices is not None and str(refused) == "not in the choices":
                self.result.refused.update(canonical(self.history, flag, word))
                self.choice(item, flag, word)
            else:
                rule = "flag.type/number" if flag.kind in ("int", "float") else "flag.type"
                self.report(rule, item.option, word, error=refused, kind=flag.kind)
            return UNSET

    def choice(self, item: Item, flag: Flag, word: str) -> None:
        choices = [str(choice) for choice in flag.choices or ()]
        close = [choice for choice in choices if choice.startswith(word)] or get_close_matches(word, choices, n=1)
        known = [
            catalogue.version
            for catalogue in self.history.catalogues
            for other in (catalogue.options.get(item.option),)
            if other is not None and word in [str(choice) for choice in other.choices or ()]
        ]
        others = f" ({known[0]} to {known[-1]} do)" if known else ""
        hint = f"Did you mean {close[0]}? " if close else ""
        self.report("flag.choice", item.option, word, others=others, hint=hint, choices=", ".join(choices))

    def unknown(self, name: str, words: tuple[str, ...], inline: bool, candidates: list[str]) -> None:
        value = " ".join(words) or None
        version = self.catalogue.version
        item = Item(name, name, words, inline, None)
        self.result.items.append(item)
        span = self.history.span(name)
        if span is not None:
            lies = f"could match {', '.join(candidates)}" if candidates else "is not known to this release"
            gone = "flag.renamed" if self.history.successor(name) else "flag.removed/other"
            self.report("flag.too_new" if span[0] > version else gone, name, value, lies=lies, **self.renamed(item))
        elif candidates:
            self.report("flag.ambiguous", name, value, candidates=", ".join(candidates))
        else:
            close = get_close_matches(name, self.catalogue.options, n=1, cutoff=0.75)
            self.report("flag.unknown/similar" if close else "flag.unknown", name, value, close="".join(close))

    def renamed(self, item: Item) -> dict[str, str]:
        """Return where a flag exists that is only in other releases, and what to write instead."""
        span = self.history.span(item.written)
        extent = f"exists in {span[0]}…{span[1]} only" if span else "is gone"
        here = spelling(item, self.catalogue, self.history)
        remedy = "Remove it: the release always behaves that way" if here == "" else f"Use {here} instead"
        if here is None:
            later = span is not None and span[0] > self.catalogue.version
            successor = self.history.successor(item.written)
            remedy = f"Use {successor} instead" if successor else "Remove it"
            if span is not None and later:
                remedy = f"Remove it, or run SGLang {span[0]} or later"
        return {"extent": extent, "instead": remedy}

    def require(self) -> None:
        given = {item.flag.name for item in self.result.items if item.flag is not None}
        for flag in self.catalogue.flags:
            # A file given with --config may have the flag.
            if flag.required and not given & {flag.name, "--config"}:
                self.report("flag.required", flag.name)

    def deprecations(self) -> None:
        for item in self.result.items:
            if item.flag is not None and item.flag.deprecated and not item.flag.error:
                words = {"other": item.flag.replacement, "help": item.flag.help}
                rule = "flag.deprecated" if item.flag.replacement else "flag.deprecated/help"
                self.report(rule, item.option, " ".join(item.words) or None, **words)


def parse_flags(catalogue: Catalogue, history: History, argv: Sequence[str]) -> Parsed:
    """Check a command line for one release; ``argv`` holds the words after ``sglang.launch_server``."""
    return _Reader(catalogue, history, [str(word) for word in argv]).run()
