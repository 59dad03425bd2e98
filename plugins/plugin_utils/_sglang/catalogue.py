# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flags of each SGLang release as its own parser defines them, and the flags that replaced retired ones.

Private to the collection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Rule, Rules
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

RULES = Rules(
    {
        "version.unsupported": Rule(
            "older than {first}, the oldest supported",
            "Use {first} or later, or make its catalogue with scripts/sglang_catalogue.py VERSION",
            "sglang",
        ),
        "version.nearest": Rule(
            "there is no catalogue of {value}; the flags of {chosen} are used",
            "To be exact, make its catalogue with scripts/sglang_catalogue.py VERSION",
            "sglang",
            "warning",
        ),
        "translate.changed": Rule("SGLang {version} spells it {spelled}", "Nothing to do", severity="info"),
        "translate.changed/default": Rule("left out: {why}", "Nothing to do", severity="info"),
        "translate.refused": Rule(
            "SGLang {version} has no counterpart ({extent})", "Remove it, or run a release that has it"
        ),
    }
)

MAKE_CATALOGUE = "make its catalogue with scripts/sglang_catalogue.py VERSION"


@dataclass(frozen=True)
class Flag:
    """One flag of one release; ``nargs`` and ``kind`` (the parser's type function) have argparse's meaning."""

    name: str
    dest: str
    names: tuple[str, ...]
    action: str = "Store"
    kind: str | None = None
    nargs: int | str | None = None
    default: Any = None
    choices: tuple[Any, ...] | None = None
    const: Any = None
    required: bool = False
    deprecated: bool = False
    replacement: str | None = None
    error: str | None = None
    help: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Flag:
        # plain.load takes three times as long, and there are 8,000 flags.
        given = {name: raw[name] for name in _PLAIN if name in raw}
        choices = None if raw.get("choices") is None else tuple(raw["choices"])
        names = (raw["flag"], *raw.get("aliases", ()))
        return cls(name=raw["flag"], names=names, kind=raw.get("type"), choices=choices, **given)

    @property
    def is_switch(self) -> bool:
        """Return whether the flag takes no value."""
        return self.nargs == 0


# Fields of a flag that a catalogue has under the same names
_PLAIN = tuple(each.name for each in fields(Flag) if each.name not in ("name", "names", "kind", "choices"))


@dataclass(frozen=True)
class Catalogue:
    """All flags of one release, the package versions that its wheel pins, and the model classes that it contains."""

    version: Version
    flags: tuple[Flag, ...]
    requires: Mapping[str, str]
    architectures: frozenset[str] = frozenset()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Catalogue:
        """Build a catalogue from the output of ``scripts/sglang_catalogue.py``."""
        flags = tuple(Flag.from_dict(entry) for entry in raw["flags"])
        return cls(Version.parse(raw["sglang"]), flags, raw["requires"], frozenset(raw["architectures"]))

    @cached_property
    def options(self) -> dict[str, Flag]:
        """Return the flags by every spelling that the parser accepts."""
        return {name: flag for flag in self.flags for name in flag.names}

    def with_fork(self, carries: Iterable[str]) -> Catalogue:
        """Return the flags of an image that is a fork of the release.

        ``--flag=value`` adds a choice to a flag, or a flag with a value; ``--flag`` alone adds a switch.
        """
        flags = {flag.name: flag for flag in self.flags}
        for name, equals, value in (word.partition("=") for word in carries if word.startswith("--")):
            known = flags.get(self.options[name].name) if name in self.options else None
            if known is None:
                dest = name.lstrip("-").replace("-", "_")
                flags[name] = Flag(name, dest, (name,), nargs=None if equals else 0, default=None if equals else False)
            elif known.choices is not None and equals:
                flags[known.name] = replace(known, choices=(*known.choices, value))
        return replace(self, flags=tuple(flags.values()))


class History:
    """The catalogues in order of release: selects the one for a version, and finds when a flag was added or removed."""

    def __init__(self, catalogues: Iterable[Catalogue]) -> None:
        self.catalogues = sorted(catalogues, key=lambda c: c.version)
        self.defaults: dict[Version, dict[str, Any]] = {}

    def release(self, name: str) -> str:
        """Return a release by its name; ``latest`` is the newest one with a catalogue."""
        return str(self.catalogues[-1].version) if name == "latest" else name

    def nearest(self, version: Version) -> tuple[Catalogue, list[Finding]]:
        """Return the catalogue for a version: its own, else its release's, else the newest older one."""
        exact = [c for c in self.catalogues if c.version == version]
        if exact:
            return exact[0], []
        same = [c for c in self.catalogues if c.version.release == version.release]
        before = [c for c in self.catalogues if c.version < version]
        if same:
            near = [(abs(c.version.stage - version.stage), abs(c.version.number - version.number)) for c in same]
            chosen = same[near.index(min(near))]
        else:
            chosen = before[-1] if before else self.catalogues[0]
        first, last = self.catalogues[0].version, self.catalogues[-1].version
        if version < first and not same:
            return chosen, [RULES.finding("version.unsupported", str(version), first=first)]
        severity = "warning" if version > last and not same else "info"
        return chosen, [RULES.finding("version.nearest", str(version), chosen=chosen.version, severity=severity)]

    def span(self, option: str) -> tuple[Version, Version] | None:
        """Return the first and the last catalogued version that accept this spelling of a flag."""
        having = [c.version for c in self.catalogues if option in c.options]
        return (having[0], having[-1]) if having else None

    def successor(self, option: str) -> str | None:
        """Return the replacement of a flag as the release that retired it names it."""
        for catalogue in reversed(self.catalogues):
            flag = catalogue.options.get(option)
            if flag is not None and flag.replacement:
                return flag.replacement
        return None

    def known(self, option: str) -> Flag | None:
        """Return the newest definition of a spelling in any release."""
        return next((c.options[option] for c in reversed(self.catalogues) if option in c.options), None)

    @cached_property
    def forward(self) -> dict[str, tuple[tuple[str, str | None], ...]]:
        """Return the replacements of each retired flag: (flag, the value to set, or None to keep the old value)."""
        moves: dict[str, tuple[tuple[str, str | None], ...]] = {}
        for catalogue in self.catalogues:
            for flag in catalogue.flags:
                if flag.replacement and "<" not in flag.replacement:
                    moves[flag.name] = tuple(_parse_replacement(flag.replacement))
        return moves

    @cached_property
    def backward(self) -> dict[tuple[str, str | None], list[str]]:
        """Return for each replacement the older spellings that it replaced, newest first."""
        found: dict[tuple[str, str | None], list[str]] = {}
        for old, new in self.forward.items():
            if len(new) == 1:
                found.setdefault(new[0], []).append(old)
        for olds in found.values():
            olds.sort(key=lambda old: self.span(old) or (), reverse=True)
        return found


def _parse_replacement(text: str) -> Iterable[tuple[str, str | None]]:
    """Split ``--a-{b,c}=d`` into (``--a-b``, ``d``) and (``--a-c``, ``d``)."""
    name, equals, value = text.partition("=")
    head, brace, rest = name.partition("{")
    names = [name]
    if brace:
        inner, tail = rest.split("}", 1)
        names = [f"{head}{part}{tail}" for part in inner.split(",")]
    return [(one, value if equals else None) for one in names]


@lru_cache(maxsize=4)
def load_history(directory: Path, *own: Path) -> History:
    """Read all catalogues; raise ValueError if the first directory has none or one can't be read."""
    catalogues = []
    for path in sorted(file for place in (directory, *own) for file in place.glob("*.json")):
        try:
            catalogues.append(Catalogue.from_dict(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{path}: not a flag catalogue ({problem}); {MAKE_CATALOGUE}") from problem
    if not catalogues:
        raise ValueError(f"{directory}: no flag catalogue here; {MAKE_CATALOGUE}")
    return History(catalogues)


@dataclass(frozen=True)
class Item:
    """One flag on a command line: ``written`` by the user, ``option`` in full; ``flag`` is None if unknown."""

    option: str
    written: str
    words: tuple[str, ...] = ()
    inline: bool = False
    flag: Flag | None = None

    @property
    def argv(self) -> list[str]:
        """Return the words of the item, with the full name of the flag."""
        if self.inline and self.words:
            return [f"{self.option}={self.words[0]}"]
        return [self.option, *self.words]


@dataclass
class Parsed:
    """A parsed command line: its flags in order, their values by canonical key, and the findings about them.

    ``stored`` holds the values under the names that the release's own parser uses.
    ``refused`` holds the words that are not valid choices in the release, so that a rule can explain why.
    """

    items: list[Item] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def key_of(option: str) -> str:
    """Return the name of a flag as a mapping key: ``--tp-size`` becomes ``tp_size``."""
    return option.lstrip("-").replace("-", "_")


def options_of(argv: Sequence[str]) -> dict[str, str]:
    """Return a command line as {option: value}; a switch has the value ``set``; of a repeated one the last counts."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = found[name] = [value] if equals else []
        else:
            values.append(word)
    return {name: " ".join(words) or "set" for name, words in found.items()}


def canonical(history: History, flag: Flag, value: Any) -> dict[str, Any]:
    """Return the effect of a flag under the newest names, so that rules need only those.

    ``--disable-piecewise-cuda-graph`` of 0.5.12 becomes ``{"cuda_graph_backend_prefill": "disabled"}``.
    """
    newest = history.catalogues[-1].options
    pending: list[tuple[str, Any]] = [(flag.name, value)]
    done: dict[str, Any] = {}
    while pending:
        name, current = pending.pop()
        moves: Iterable[tuple[str, str | None]] = history.forward.get(name, ())
        if not moves:
            done[key_of(newest[name].name if name in newest else name)] = current
        elif all(constant is None for *_flag, constant in moves) or current not in (None, False):
            pending += [(new, current if constant is None else constant) for new, constant in moves]
    return done


# Write the flags of one SGLang release in the spelling of another, or report why that is impossible.
#
# Private to the collection. Renames come from the releases themselves: a release that retires a flag names its
# replacement, and the catalogues record it. Only renames that no release documents are listed here.

PREFILL, DECODE = "--cuda-graph-backend-prefill", "--cuda-graph-backend-decode"
NO_GRAPH = "--disable-cuda-graph"
_DEFAULTS: dict[tuple[str, str | None], str] = {
    ("--disable-piecewise-cuda-graph", None): "this release compiles no prefill graph unless asked to",
    (PREFILL, "disabled"): "this release compiles no prefill graph unless asked to",
    (DECODE, "full"): "this release always captures the whole decode step",
}
"""Flags that can be left out in a release without them, because it behaves that way by default."""


class _Translator:
    """Translates one list of flags to one release."""

    def __init__(self, items: Sequence[Item], catalogue: Catalogue, history: History, written_for: Catalogue) -> None:
        self.items, self.catalogue, self.history, self.written_for = items, catalogue, history, written_for
        self.done: list[Item] = []
        self.findings: list[Finding] = []

    def report(self, rule: str, item: Item, **words: str) -> None:
        value, version = " ".join(item.words) or None, self.catalogue.version
        self.findings.append(RULES.finding(rule, value, key=item.written, version=version, **words))

    def spells(self, item: Item, spelled: str) -> None:
        self.report("translate.changed", item, spelled=spelled)

    def add(self, option: str, words: tuple[str, ...], inline: bool) -> None:
        flag = self.catalogue.options[option]
        item = Item(option, option, () if flag.is_switch else words, inline, flag)
        if item not in self.done:
            self.done.append(item)

    def has(self, option: str) -> bool:
        return option in self.catalogue.options

    def run(self) -> tuple[list[Item], list[Finding]]:
        for item in self._graphs(self._attention_dp(self.items)):
            steps: tuple[Callable[[Item], bool], ...] = (self.forward, self.keep, self.backward, self.leave_out)
            if not any(step(item) for step in steps):
                self.refuse(item)
        return self.done, self.findings

    def keep(self, item: Item) -> bool:
        if not self.has(item.option):
            return False
        self.add(item.option, item.words, item.inline)
        return True

    def forward(self, item: Item) -> bool:
        """Apply the replacements that later releases name, as far as this release has them."""
        moves = self.history.forward.get(item.option)
        if moves is None or not all(self.has(self._last(new)) for new, *_constant in moves):
            return False
        for new, constant in moves:
            words = item.words if constant is None else (constant,)
            self.add(self._last(new), words, constant is not None or item.inline)
        shown = " ".join(f"{new}={constant}" if constant else new for new, constant in moves)
        self.spells(item, shown)
        return True

    def _last(self, option: str) -> str:
        seen = {option}
        while not self.has(option):
            moves = self.history.forward.get(option, ())
            if len(moves) != 1 or moves[0][0] in seen:
                break
            option = moves[0][0]
            seen.add(option)
        return option

    def backward(self, item: Item) -> bool:
        """Find the spelling of the same effect in this older release."""
        value = item.words[0] if len(item.words) == 1 else None
        for constant in (value, None):
            for old in self.history.backward.get((item.option, constant), ()):
                if self.has(old):
                    self.add(old, () if constant is not None else item.words, item.inline)
                    self.spells(item, old)
                    return True
        if (item.option, value) == (DECODE, "disabled") and self.has(NO_GRAPH):
            self.add(NO_GRAPH, (), False)
            self.spells(item, NO_GRAPH)
            return True
        return False

    def leave_out(self, item: Item) -> bool:
        value = item.words[0] if len(item.words) == 1 else None
        why = _DEFAULTS.get((item.option, value))
        if why is None:
            return False
        self.report("translate.changed/default", item, why=why)
        return True

    def _graphs(self, items: Sequence[Item]) -> Sequence[Item]:
        """Keep the meaning of ``--disable-cuda-graph``, which also disables the prefill graph since 0.5.14.

        Before 0.5.14, the prefill graph had a separate switch (init_piecewise_cuda_graphs in model_runner.py). The
        release that merged the switches names the flags of both phases as the replacement.
        """
        then, now = (side.options.get(NO_GRAPH) for side in (self.written_for, self.catalogue))
        joined, joins = (flag is not None and flag.replacement is not None for flag in (then, now))
        if joined == joins:
            return items
        kept: list[Item] = []
        for item in items:
            if item.option != NO_GRAPH:
                kept.append(item)
            elif joins:
                kept.append(Item(DECODE, item.written, ("disabled",), inline=True))
                self.spells(item, f"{DECODE}=disabled; the prefill graph is another flag")
            else:
                kept += [item, Item(PREFILL, item.written, ("disabled",), inline=True)]
        return kept

    def _attention_dp(self, items: Sequence[Item]) -> Sequence[Item]:
        """Convert ``--dp-size N --enable-dp-attention`` to ``--attn-dp-size N`` (0.5.22 and later), and back."""
        by_key = {key_of(item.option): item for item in items}
        size, switch = by_key.get("dp_size") or by_key.get("data_parallel_size"), by_key.get("enable_dp_attention")
        attention = by_key.get("attn_dp_size")
        if self.has("--attn-dp-size") and switch is not None and size is not None:
            self.spells(switch, "--attn-dp-size")
            kept = [item for item in items if item not in (size, switch)]
            return [*kept, Item("--attn-dp-size", size.written, size.words, size.inline)]
        if attention is not None and not self.has("--attn-dp-size") and size is None:
            kept = [item for item in items if item is not attention]
            size = Item("--dp-size", "--attn-dp-size", attention.words, attention.inline)
            return [*kept, size, Item("--enable-dp-attention", "--attn-dp-size")]
        return items

    def refuse(self, item: Item) -> None:
        span = self.history.span(item.option)
        extent = f"it exists in {span[0]}…{span[1]}" if span else "no known release has it"
        self.report("translate.refused", item, extent=extent)
        self.done.append(item)


def translate(
    items: Sequence[Item], catalogue: Catalogue, history: History, written_for: Catalogue | None = None
) -> tuple[list[Item], list[Finding]]:
    """Return the flags in the spelling of a release; flags without a counterpart stay and cause an error finding.

    ``written_for`` is the release for which the flags were written, if it is another one.
    """
    return _Translator(items, catalogue, history, written_for or catalogue).run()


def spelling(item: Item, catalogue: Catalogue, history: History) -> str | None:
    """Return a flag with its value as the release spells it; empty if it needs none, None if it has no counterpart."""
    done, notes = translate([item], catalogue, history)
    if any(note.severity == "error" for note in notes):
        return None
    return " ".join(word for one in done for word in one.argv)
