# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put a failure on one screen: what, why, what to do, and the line that shows it. Private to the collection."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, cut, merge_places

HEIGHT = 25
"""Most lines of a screen: the default size of a terminal is 80 columns of 24 or 25 lines."""
NARROWEST, WIDEST = 60, 120
# Longer lines are hard to read; what is cut is in the file.
_LONGEST_TEXT, _LONGEST_LINE = 700, 300
# Number of causes and the longest text of each, from the best to what fits into 60 columns at worst
_SIZES = ((3, _LONGEST_TEXT), (3, 300), (2, 300), (1, 300))
_STATES, _LEAST_ROOM = 6, 3


@dataclass(frozen=True)
class Cause:
    """A reason with its remedy. ``who`` names the ranks or hosts that it is about; empty: those of the title."""

    text: str
    remedy: str
    who: str = ""


@dataclass(frozen=True)
class State:
    """What is known of one rank, host or pod.

    ``who`` is its name (``rank 0``), ``place`` its host. ``own`` are other names of it that its ``text`` may contain:
    texts that differ only in these say the same.
    """

    who: str
    text: str
    place: str = ""
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Screen:
    """A failure. ``states`` say what differs, ``notes`` are other observations with their label.

    ``evidence`` is one line of a log, ``source`` where it was written. ``command`` is what to type after the remedy.
    ``details`` is the file with everything else. ``total`` is how many ranks or hosts there are, if not all have a
    state.
    """

    title: str
    causes: Sequence[Cause] = ()
    states: Sequence[State] = ()
    notes: Sequence[tuple[str, str]] = ()
    evidence: str = ""
    source: str = ""
    command: str = ""
    details: str = ""
    total: int = 0


def names(whos: Sequence[str], total: int) -> str:
    """Return ``all 4 ranks``, ``rank 0``, or ``ranks 0, 2``, for names that consist of a word and a number or name."""
    word = whos[0].partition(" ")[0]
    if any(who.partition(" ")[0] != word for who in whos):
        return ", ".join(whos)
    if total > 1 and len(whos) == total:
        return f"all {total} {word}s"
    numbers = [who.partition(" ")[2] for who in whos]
    return f"{word}{'s' if len(whos) > 1 else ''} {', '.join(numbers)}"


def shared(states: Iterable[State]) -> list[tuple[list[State], str]]:
    """Return the texts, each with those that it is about, in the order of the first of them."""
    found: dict[str, list[State]] = {}
    for state in states:
        key = state.text
        for name in sorted(filter(None, (state.who, state.place, *state.own)), key=len, reverse=True):
            key = key.replace(name, "\0")
        found.setdefault(key, []).append(state)
    return [(group, group[0].text) for group in found.values()]


def render(screen: Screen, width: int = 100, height: int = HEIGHT) -> str:
    """Return the failure as at most ``height`` lines of at most ``width`` characters; words are not broken.

    If there is too much of it, the states and notes are shortened first, then the causes: the file has all of them.
    """
    width = max(NARROWEST, min(width, WIDEST))
    head, ends = _wrapped("", cut(screen.title, _LONGEST_LINE), width), []
    if screen.command:
        # A command is to be copied, so it is not wrapped.
        ends.append(f"Then run: {screen.command}")
    if screen.evidence:
        place = f" ({cut(screen.source, _LONGEST_LINE // 2)})" if screen.source else ""
        ends += _wrapped("Evidence: ", cut(screen.evidence, _LONGEST_LINE) + place, width)
    for number, limit in _SIZES:
        why = _causes(screen.causes[:number], width, limit)
        left = max(0, len(screen.causes) - number)
        more = f"{left} more {'cause' if left == 1 else 'causes'}, logs" if left else "Logs"
        end = [*ends, *(_wrapped("", f"{more} and all details: {screen.details}", width) if screen.details else [])]
        room = height - len(head) - len(why) - len(end)
        if room >= min(_LEAST_ROOM, len(screen.states) + len(screen.notes)):
            break
    return "\n".join([*head, *_fitting(screen, width, room), *why, *end])


def render_text(text: str, width: int = 100, height: int = HEIGHT, details: str = "") -> str:
    """Return a message of several lines as at most ``height`` lines of at most ``width`` characters.

    A longer one loses its middle: it begins with what failed and ends with what to do.
    """
    width = max(NARROWEST, min(width, WIDEST))
    lines = fold(text, width, _LONGEST_TEXT)
    end = _wrapped("", f"All details: {details}", width) if details else []
    room = height - len(end)
    if len(lines) > room:
        half = room // 2
        lines = [*lines[:half], f"… {len(lines) - room + 1} more lines", *lines[len(lines) - (room - half - 1) :]]
    return "\n".join([*lines, *end])


def fold(text: str, width: int, longest: int = 10_000) -> list[str]:
    """Return the lines of a text; those longer than ``width`` are wrapped, and those longer than ``longest`` are cut.

    A line of a table keeps its spaces, and a command that has several lines keeps these.
    """
    width, lines, command = max(NARROWEST, min(width, WIDEST)), [], False
    for each in text.split("\n"):
        whole = command or each.endswith("\\") or len(each) <= width
        command = each.endswith("\\")
        lines += [each.rstrip()] if whole else _hung(cut(each, longest), each, width)
    return lines


def _hung(text: str, line: str, width: int) -> list[str]:
    """Return a line, wrapped below its own indent."""
    indent = " " * min(len(line) - len(line.lstrip()), NARROWEST // 2)
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _causes(causes: Sequence[Cause], width: int, limit: int) -> list[str]:
    """Return the causes; those with the same remedy stand together above it, so that it is read once."""
    lines, remedies = [], [cause.remedy for cause in causes]
    for number, remedy in enumerate(remedies):
        same = [cause for cause in causes if cause.remedy == remedy] if remedy else [causes[number]]
        if remedy in remedies[:number] and remedy:
            continue
        for cause in same:
            who = f"Cause ({cause.who}): " if cause.who else "Cause: "
            lines += _wrapped(who, _sentence(cause.text, limit), width)
        lines += _wrapped("What to do: ", _sentence(remedy, limit), width) if remedy else []
    return lines


def _fitting(screen: Screen, width: int, room: int) -> list[str]:
    """Return as many states and notes as there is room for, and how many are left out."""
    groups = shared(screen.states)
    total = screen.total or len(screen.states)
    blocks = []
    for group, text in groups:
        who = names([state.who for state in group], total)
        places = list(dict.fromkeys(filter(None, (state.place for state in group))))
        on = f" on {', '.join(places)}" if places and len(group) < total else ""
        blocks.append(_wrapped(f"{who}{on}: ", cut(text, _LONGEST_TEXT // max(1, min(len(groups), 3))), width))
    blocks += [_wrapped(f"{label}: ", cut(text, _LONGEST_TEXT), width) for label, text in screen.notes]
    shown: list[str] = []
    for number, block in enumerate(blocks):
        left = len(blocks) - number
        if len(shown) + len(block) + (left > 1) > room or (number >= _STATES and left > 1):
            return [*shown, f"… and {left} more"][: max(0, room)]
        shown += block
    return shown


def _wrapped(label: str, text: str, width: int) -> list[str]:
    first = f"{label[:1].upper()}{label[1:]}{text}"
    return textwrap.wrap(first, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _sentence(text: str, limit: int) -> str:
    text = cut(text, limit)
    text = text[:1].upper() + text[1:] if text[:1].islower() and not _is_name(text) else text
    return text if text.endswith((".", "?", ":")) else f"{text}."


def _is_name(text: str) -> bool:
    """Tell whether a text begins with a name (``gb10_mtu``, ``playbooks/serve.yml``, ``libibverbs``)."""
    word = text.partition(" ")[0]
    return not word.rstrip(",:;?").isalpha() or word.startswith("lib")


_INDENT = "    "


def render_findings(findings: Iterable[Finding], width: int = 100) -> str:
    """Return all findings, worst first, wrapped at ``width`` columns; words are not broken."""
    return render_in_order(merge_places(findings), width)


def render_in_order(findings: Iterable[Finding], width: int) -> str:
    """Return the findings as they are given, wrapped at ``width`` columns."""
    return "\n".join(line for finding in findings for line in _lines(finding, width))


def _lines(finding: Finding, width: int) -> list[str]:
    texts = finding.sentences + ([f"Set in {finding.place}."] if finding.place else [])
    return [
        line
        for number, text in enumerate(texts)
        for line in textwrap.wrap(
            text,
            max(NARROWEST, min(width, WIDEST)),
            initial_indent=_INDENT if number else "",
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def counted(findings: Iterable[Finding], zero: bool = False) -> str:
    """Return how many errors and warnings there are: ``1 error``, or with ``zero`` ``0 errors, 2 warnings``."""
    severities = [finding.severity for finding in merge_places(findings)]
    numbers = [(severities.count(word), word) for word in ("error", "warning")]
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in numbers if number or zero)
