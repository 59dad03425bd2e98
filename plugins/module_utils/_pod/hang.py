# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what the ranks of a group show while it hangs: which rank, rail or process holds up the others.

This module reads no clock, file or network. A rank's evidence (_pod/evidence.py) comes from a container that
may be broken, so nothing in it is trusted to have a form, a size, or text that may be shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Events of a rail in ten seconds that are no accident; one of the FATAL ones ends a connection.
_LOSSY = 10
_FATAL = ("req_transport_retries_exceeded", "rnr_nak_retry_err")
# Bytes that more than a few acknowledgements have
_MOVED = 4096
# Seconds after which a file that is written every ten is old, and the part of another GPU's clock that is slow.
_OLD, _SLOW = 60, 0.6
# Entries of a list, and characters of a text, that are looked at
_MOST, _LONGEST = 512, 120
# A template of Ansible, and what a terminal would not show as a character.
_UNSHOWN = re.compile(r"[^ -z|~]|%")


def _text(value: Any) -> str:
    return _UNSHOWN.sub("?", value[:_LONGEST]) if isinstance(value, str) else "?"


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0


def _list(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[Any, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]


@dataclass(frozen=True)
class _Rank:
    number: int
    given: dict[Any, Any]

    def __str__(self) -> str:
        return f"rank {self.number}"

    def told(self, name: str) -> dict[Any, Any]:
        """Return what a source of the rank has told, ``witness`` or ``gpu``."""
        told = self.given.get(name)
        return told if isinstance(told, dict) else {}

    @property
    def processes(self) -> list[dict[Any, Any]]:
        return _dicts(self.told("witness").get("processes"))

    @property
    def rails(self) -> list[dict[Any, Any]]:
        return _dicts(self.given.get("rails"))

    def moved(self, rail: int) -> int | None:
        """Return the bytes that a rail sent and received, None if they were not counted."""
        pair = _list(self.rails[rail].get("bytes")) if rail < len(self.rails) else []
        return sum(map(_number, pair)) if pair and None not in pair else None


def judge(given: Sequence[Any], addresses: Sequence[str]) -> list[str]:
    """Return what was found, the most telling first.

    ``given`` is the evidence of each rank in order, None of one that did not answer; ``addresses`` are those of the
    pods.
    """
    ranks = [_Rank(number, each) for number, each in enumerate(given) if isinstance(each, dict)]
    places = {address: number for number, address in enumerate(addresses) if address}
    places |= {_text(rail["address"]): rank.number for rank in ranks for rail in rank.rails if rail.get("address")}
    silent = [str(number) for number, each in enumerate(given) if not isinstance(each, dict)]
    told = max(
        (_dicts(rank.given.get("communicators")) for rank in ranks),
        key=lambda listed: sum("begun" in row for one in listed for row in _dicts(one.get("ranks"))),
        default=[],
    )
    found = [*_ended(ranks), *_down(ranks), *_lossy(ranks)]
    found += [text for one in told for text in _behind(one, places)] or _recorded(ranks)
    found += [*_still(ranks), *_slow(ranks)]
    if silent:
        found.append(
            f"rank {', '.join(silent)} did not answer: look whether its node and its sidecar live, and whether a "
            "network policy admits the supervisor (playbook kubernetes)"
        )
    mute = [str(rank.number) for rank in ranks if not rank.told("witness")]
    if mute and len(mute) < len(ranks):
        found.append(f"rank {', '.join(mute)}: its server, or only the witness of its processes, has ended or hangs")
    found += _apart(ranks)
    if not found:
        said = "NCCL knows of no rank that is behind" if told else "NCCL told nothing (RAS answers from 2.28.7 on)"
        seen = "the witness of no rank's processes answers" if mute else "no process has ended or is stopped"
        found = [f"nothing was found: {seen}, every rail has its link, and {said}"]
        if dumb := [str(rank.number) for rank in ranks if rank.told("gpu").get("tells_faults") is False]:
            found.append(
                f"NVML tells no faults of the GPU of rank {', '.join(dumb)} (Xid): only its kernel log has them"
            )
    return list(dict.fromkeys(found))


def _ended(ranks: list[_Rank]) -> Iterator[str]:
    for rank in ranks:
        faults = rank.told("gpu").get("xid")
        for code in list(faults)[:4] if isinstance(faults, dict) else ():
            yield f"{rank}: its GPU has reported Xid {_text(code)} since the server's start"
    for rank in ranks:
        for name in _list(rank.told("witness").get("gone")):
            yield f"{rank}: its process {_text(name)} has ended, and the others wait for it"
    for rank in ranks:
        for one in rank.processes:
            if one.get("state") in ("T", "t"):
                yield f"{rank}: its process {_text(one.get('name'))} is stopped (state T), by SIGSTOP or a debugger"


def _down(ranks: list[_Rank]) -> Iterator[str]:
    for rank in ranks:
        for rail in rank.rails:
            if rail.get("down"):
                yield f"{rank}: {_text(rail['down'])}; look at the cable and the switch port"


def _lossy(ranks: list[_Rank]) -> Iterator[str]:
    worst: list[tuple[int, str]] = []
    for rank in ranks:
        for rail in rank.rails:
            counted = rail.get("errors")
            pairs = counted.items() if isinstance(counted, dict) else ()
            errors = {_text(name): _number(count) for name, count in pairs if _number(count)}
            total = sum(errors.values())
            if total >= _LOSSY or any(errors.get(name) for name in _FATAL):
                most = sorted(errors.items(), key=lambda item: -item[1])[:4]
                said = ", ".join(f"{name} +{count}" for name, count in most)
                worst.append((total, f"{rank}: {_text(rail.get('interface'))} loses packets ({said} in ten seconds)"))
    for _total, text in sorted(worst, key=lambda item: -item[0])[:4]:
        yield text


def _behind(communicator: dict[Any, Any], places: dict[str, int]) -> Iterator[str]:
    """Yield which ranks of a communicator have begun fewer operations, or other ones, than the others."""
    rows = _dicts(communicator.get("ranks"))
    named = f"communicator {_text(communicator.get('hash'))}"

    def who(chosen: Sequence[dict[Any, Any]]) -> str:
        known = [places.get(_text(row.get("host"))) for row in chosen]
        numbers = sorted({place for place in known if place is not None})
        if None in known:
            numbers = [_number(row.get("rank")) for row in chosen]
        return ("NCCL's rank " if None in known else "rank ") + ", ".join(map(str, numbers))

    if missing := [row for row in rows if row.get("missing")]:
        yield f"NCCL gets no answer from {who(missing)}: its process does not run, or its network is away"
    begun = [(row, row["begun"]) for row in rows if isinstance(row.get("begun"), dict)]
    behind: dict[str, tuple[str, int, int]] = {}
    for name in sorted({name for _row, counts in begun for name in counts if isinstance(name, str)})[:_MOST]:
        counts = [_number(own.get(name)) for _row, own in begun]
        least, most = min(counts), max(counts)
        if least < most:
            slowest = [row for (row, _own), count in zip(begun, counts, strict=True) if count == least]
            behind[_text(name)] = who(slowest), least, most
    if len({late for late, _least, _most in behind.values()}) > 1:
        each = ", ".join(f"{late} has begun {least} {name} of {most}" for name, (late, least, most) in behind.items())
        yield f"the ranks call different collectives in {named}, which can never end: {each}"
    else:
        for name, (late, least, most) in behind.items():
            yield f"{late} is behind in {named}: it has begun {least} {name}, others {most}"


def _recorded(ranks: list[_Rank]) -> list[str]:
    """Return which ranks have called fewer collectives of a group of PyTorch than others."""
    groups: dict[str, list[tuple[int, _Rank, str]]] = {}
    for rank in ranks:
        for row in _dicts(rank.told("witness").get("torch")):
            called = _number(row.get("called")), rank, _text(row.get("last"))
            groups.setdefault(_text(row.get("group")), []).append(called)
    found = []
    for name, rows in groups.items():
        least, most = (choose(called for called, _rank, _last in rows) for choose in (min, max))
        if least < most:
            late = sorted({rank.number for called, rank, _last in rows if called == least})
            last = next((f", the last one {last}" for called, _rank, last in rows if called == most and last), "")
            found.append(
                f"rank {', '.join(map(str, late))} is behind in PyTorch's group {name}: it has called {least}"
                f" collectives, others {most}{last}"
            )
    return found[:4]


def _still(ranks: list[_Rank]) -> Iterator[str]:
    for number in range(max((len(rank.rails) for rank in ranks), default=0)):
        moved = [(rank, rank.moved(number)) for rank in ranks]
        if any((count or 0) >= _MOVED for _rank, count in moved):
            for rank in (rank for rank, count in moved if count == 0):
                name = _text(rank.rails[number].get("interface"))
                yield f"{rank}: the counters of {name} stand still, while other ranks send on this rail"


def _slow(ranks: list[_Rank]) -> Iterator[str]:
    """Yield the ranks whose GPU works with a much lower clock than others, or whose driver does not answer."""
    clocks: list[tuple[_Rank, dict[Any, Any]]] = []
    for rank in ranks:
        asked, told = _number(rank.given.get("at")), _number(rank.told("gpu").get("at"))
        if told and asked - told >= _OLD:
            yield f"{rank}: its GPU's driver (NVML) has not answered for {asked - told} s"
        rows = _dicts(rank.told("gpu").get("now"))
        if busy := [row for row in rows if _number(row.get("mhz")) and _number(row.get("busy_percent"))]:
            clocks.append((rank, min(busy, key=lambda row: _number(row["mhz"]))))
    most = max((_number(row["mhz"]) for _rank, row in clocks), default=0)
    for rank, row in clocks:
        if _number(row["mhz"]) < _SLOW * most:
            power = f" and takes {_number(row['watts'])} W" if "watts" in row else ""
            yield f"{rank}: its GPU works at {_number(row['mhz'])} MHz{power}, another rank's at {most} MHz"


def _apart(ranks: list[_Rank]) -> list[str]:
    """Return where the ranks are, if they are at different places in their programs."""
    places: dict[str, list[str]] = {}
    for rank in ranks:
        programs = sorted(rank.processes, key=lambda one: "scheduler" not in _text(one.get("name")))
        stacks = [_list(one.get("threads")) for one in programs]
        frames = next((_list(threads[-1]) for threads in stacks if threads), [])
        if frames:
            places.setdefault(_text(frames[0]), []).append(str(rank.number))
    if len(places) < 2:
        return []
    rare = sorted(places.items(), key=lambda item: len(item[1]))[:4]
    return ["the ranks are at different places: " + ", ".join(f"rank {', '.join(who)} in {at}" for at, who in rare)]
