# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the flags of one SGLang release in the spelling of another, or report why that is impossible.

Private to the collection. Renames come from the releases themselves: a release that retires a flag names its
replacement, and the catalogues record it. Only renames that no release documents are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .catalogue import Catalogue, History, Item, key_of

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

    def report(self, severity: Severity, item: Item, reason: str, remedy: str) -> None:
        value = " ".join(item.words) or None
        rule = "translate.refused" if severity == "error" else "translate.changed"
        self.findings.append(Finding(severity, rule, item.written, value, reason, remedy))

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
        self.report("info", item, f"SGLang {self.catalogue.version} spells it {shown}", "Nothing to do")
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
                    self.report("info", item, f"SGLang {self.catalogue.version} spells it {old}", "Nothing to do")
                    return True
        if (item.option, value) == (DECODE, "disabled") and self.has(NO_GRAPH):
            self.add(NO_GRAPH, (), False)
            self.report("info", item, f"SGLang {self.catalogue.version} spells it {NO_GRAPH}", "Nothing to do")
            return True
        return False

    def leave_out(self, item: Item) -> bool:
        value = item.words[0] if len(item.words) == 1 else None
        why = _DEFAULTS.get((item.option, value))
        if why is None:
            return False
        self.report("info", item, f"left out: {why}", "Nothing to do")
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
                name = f"{DECODE}=disabled; the prefill graph is another flag"
                self.report("info", item, f"SGLang {self.catalogue.version} spells it {name}", "Nothing to do")
            else:
                kept += [item, Item(PREFILL, item.written, ("disabled",), inline=True)]
        return kept

    def _attention_dp(self, items: Sequence[Item]) -> Sequence[Item]:
        """Convert ``--dp-size N --enable-dp-attention`` to ``--attn-dp-size N`` (0.5.22 and later), and back."""
        by_key = {key_of(item.option): item for item in items}
        size, switch = by_key.get("dp_size") or by_key.get("data_parallel_size"), by_key.get("enable_dp_attention")
        attention = by_key.get("attn_dp_size")
        if self.has("--attn-dp-size") and switch is not None and size is not None:
            self.report("info", switch, f"SGLang {self.catalogue.version} spells it --attn-dp-size", "Nothing to do")
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
        reason = f"SGLang {self.catalogue.version} has no counterpart ({extent})"
        self.report("error", item, reason, "Remove it, or run a release that has it")
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
