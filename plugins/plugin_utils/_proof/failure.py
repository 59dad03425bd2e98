# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""End a task with one screen: why a group does not become ready, or what else failed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import cut
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import tells_more
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import write_private

from .._bench.journal import classify, crash_line
from .._controller.action import hold, width
from .._controller.screen import Cause, Screen, State, names, render, render_text
from .._inventory.variables import load_known

# Variables that no role declares: those of a vault and of the connection, and those that are named like a secret.
_OWN_SECRET = re.compile(r"vault|(?:.*_)?(?:pass|password|passwd|passphrase|psk|token|api_key)$", re.I)
# Options with the configuration of another program, and the keys in it that have secrets. The URL of a webhook is one.
_CONFIGURATIONS = ("k3s_registries", "monitoring_alertmanager")
_SECRET_KEY = re.compile(r"(?:password|token|secret|key|credentials|auth|url)$", re.I)


def secret_values(hostvars: Any) -> tuple[set[str], dict[str, str]]:
    """Return the values of all secret variables, and why others could not be read."""
    known = load_known()
    specs = {**known.shared, **{name: spec for role in known.roles.values() for name, spec in role.items()}}
    names = [name for name, spec in specs.items() if spec.get("no_log")]
    found: set[str] = set()
    unknown: dict[str, str] = {}
    for host in hostvars:
        values = hostvars[host]
        own = [name for name in values if name not in specs and _OWN_SECRET.match(name)]
        for name in [*names, *own, *_CONFIGURATIONS]:
            try:
                found |= set((_keyed if name in _CONFIGURATIONS else _strings)(values.get(name)))
            except AnsibleError as error:
                unknown[name] = type(error).__name__
    return found, unknown


def _keyed(value: Any) -> Iterator[str]:
    """Yield the strings of a configuration whose keys are those of secrets."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(each) if isinstance(each, str) and _SECRET_KEY.search(str(key)) else _keyed(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _keyed(each)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)
    elif value is not None:
        yield str(value)


Template = Callable[[Any], Any]


def failed(
    screen: Screen,
    name: str,
    details: Mapping[str, Any],
    task_vars: Mapping[str, Any],
    template: Template,
    write: bool = True,
) -> dict[str, Any]:
    """Return a failed result whose message is the title, and hold the screen for the end of the run.

    ``details`` go to ``failed-<name>.txt`` in the directory of results, readable by its owner only and without secrets.
    """
    secrets = secret_values(task_vars["hostvars"])[0]
    if write and not screen.details:
        kept, why = _keep(name, details, secrets, task_vars, template)
        screen = replace(screen, details=kept, notes=[*screen.notes, ("Details", why)] if why else screen.notes)
    text = redact(render(screen, width()), secrets)
    return {"failed": True, "msg": screen.title, **hold(text)}


def failed_text(
    name: str, details: Mapping[str, Any], task_vars: Mapping[str, Any], template: Template, write: bool = True
) -> dict[str, Any]:
    """Return a failed result with the first line of a message of several lines, and hold the whole message."""
    secrets = secret_values(task_vars["hostvars"])[0]
    kept, why = _keep(name, details, secrets, task_vars, template) if write else ("", "")
    text = render_text(f"{details['msg']}\nDetails: {why}" if why else details["msg"], width(), details=kept)
    return {"failed": True, "msg": redact(details["msg"].splitlines()[0], secrets), **hold(redact(text, secrets))}


def _keep(
    name: str, details: Mapping[str, Any], secrets: Collection[str], task_vars: Mapping[str, Any], template: Template
) -> tuple[str, str]:
    """Write the details to a file; return its name, or why it could not be written."""
    directory = Path(str(template(task_vars.get("gb10_results_dir", "results")))).expanduser()
    path = directory / f"failed-{re.sub(r'[^A-Za-z0-9.-]+', '-', name).strip('-')}.txt"
    try:
        return write_private(path, f"{redact(_text(details), secrets)}\n".encode()), ""
    except OSError as error:
        return "", f"not kept, {path}: {error.strerror}"


def _text(details: Mapping[str, Any]) -> str:
    """Return the message as it is, then everything else as JSON."""
    rest = {key: value for key, value in details.items() if key not in ("msg", "invocation", "exception")}
    return f"{details.get('msg', '')}\n\n{json.dumps(rest, indent=1, sort_keys=True, default=str)}"


# Say on one screen why a serving group does not become ready.

PROBABLE = 0.3
"""A cause with less confidence is only a hint."""
CONSEQUENCES = frozenset(
    {
        "bootstrap",
        "completion_flushed",
        "nccl_error",
        "net_mismatch",
        "peer_gone",
        "proxy_failed",
        "rank_missing",
        "segfault",
        "watchdog",
        "wrong_peer_type",
    }
)
"""Causes by which a rank reports what another rank, or an earlier line of its own, did to it."""


def roots(causes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the causes (of module nccl_transport) that no other one explains, the most telling first.

    A rank has one cause, the most telling of its log. Where another rank shows why it failed, the ranks that only
    noticed that have none.
    """
    best: dict[Any, Mapping[str, Any]] = {}
    for cause in sorted((c for c in causes if c["confidence"] >= PROBABLE), key=lambda c: -c["confidence"]):
        best.setdefault(_rank(cause), cause)
    found = list(best.values())
    own = [cause for cause in found if cause["id"] not in CONSEQUENCES]
    return own or found


def merged(causes: Sequence[Mapping[str, Any]], total: int) -> list[Cause]:
    """Return each cause once; with the ranks that have it unless all ``total`` ranks do."""
    ranks: dict[str, list[Any]] = {}
    for cause in causes:
        ranks.setdefault(cause["id"], []).append(_rank(cause))
    first = {cause["id"]: cause for cause in reversed(causes)}
    return [
        Cause(
            first[name]["summary"],
            first[name]["remedy"],
            "" if len(who) >= total else names([_who(rank) for rank in sorted(who, key=str)], total),
        )
        for name, who in ranks.items()
    ]


def _rank(cause: Mapping[str, Any]) -> Any:
    return cause["source"] if cause["rank"] is None else cause["rank"]


def _who(rank: Any) -> str:
    return f"rank {rank}" if isinstance(rank, int) else f"pod {rank}"


# The words of a condition whose judgement (module nccl_transport) is not the expected one.
_TCP = re.compile(r"transport: NCCL transport (?:socket|mixed): ")
# How the condition of a rank names the verdict and itself, which the screen does before each text.
_HEAD = re.compile(r"transport: (?:NCCL transport \S+: )?(?:rank \d+ \([^)]*\): )?")
# The condition of a rank repeats these; the screen has them once.
_CAUSE, _OTHERS = ". Probable cause: ", ". Other ranks: "


def group_screen(result: Mapping[str, Any], instance: str) -> Screen:
    """Return the screen for the failed result of module serving_group_info."""
    ranks, causes = result["ranks"], roots(result["causes"]) or _told(result["ranks"])
    total = len(ranks) + len(result["missing"])
    troubled = [rank for rank in ranks if not rank["ready"]]
    tcp = _on_tcp(troubled, causes)
    explained = {cause["rank"] for cause in causes}
    reasons = merged(causes, len(troubled))
    line, source, known = "", "", None
    if causes and causes[0]["line"]:
        line, source = causes[0]["line"], _place(ranks, causes[0]["rank"])
    else:
        line, source, known = _said(troubled, result["logs"])
        reasons += [known] if known and not causes else []
    reasons += [Cause(cut(text, 300), remedy) for text, remedy in result["hints"]]
    shown = [rank for rank in ranks if not (rank in tcp and rank["rank"] in explained)]
    states = [_state(rank, bool(reasons)) for rank in shown if shown != ranks or not rank["ready"]]
    states += [State(f"rank {number}", "no pod") for number in result["missing"]]
    said = [state.text for state in states]
    events = [] if reasons else result["events"]
    notes = [("Event", text) for text in events if not any(text.split(": ", 2)[-1] in one for one in said)]
    title = _title(instance, tcp, troubled, result["missing"], total, result["waited"])
    return Screen(title, reasons, states, notes[:2], line, source, total=total)


def _title(
    instance: str,
    tcp: Sequence[Mapping[str, Any]],
    troubled: Sequence[Mapping[str, Any]],
    missing: Sequence[int],
    total: int,
    waited: float,
) -> str:
    if tcp:
        who = names([f"rank {rank['rank']}" for rank in tcp], total)
        verb = "talks" if len(tcp) == 1 else "talk"
        return f"{who[0].upper()}{who[1:]} of group {instance} {verb} TCP instead of RoCE, so the group does not serve."
    number = len(troubled) + len(missing)
    verb = "is" if number == 1 else "are"
    return f"Group {instance} does not start: {number} of {total} ranks {verb} not ready after {waited:.0f} s."


def _on_tcp(troubled: Sequence[Mapping[str, Any]], causes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ranks that talk TCP where the plan has RDMA: those that say so, and those with the same cause.

    The wait ends when the first rank has proved TCP; others may not have connected yet.
    """
    proved = {rank["rank"] for rank in troubled if _TCP.match(rank["trouble"])}
    shared = {cause["id"] for cause in causes if cause["rank"] in proved}
    proved |= {cause["rank"] for cause in causes if proved and cause["id"] in shared}
    return [rank for rank in troubled if rank["rank"] in proved]


def _told(ranks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the causes that the conditions of the ranks name, where no log shows one (seen on a slow cluster)."""
    found: list[Mapping[str, Any]] = []
    for rank in ranks:
        text = rank["trouble"].partition(_CAUSE)[2].partition(_OTHERS)[0]
        summary, _dot, remedy = text.partition(". ")
        if remedy:
            found.append({"id": summary, "rank": rank["rank"], "summary": summary, "remedy": remedy, "line": ""})
    return found


def _state(rank: Mapping[str, Any], explained: bool) -> State:
    text = "ready" if rank["ready"] else rank["trouble"] or ("loading" if rank["phase"] == "Running" else rank["phase"])
    text = _HEAD.sub("", text.partition(_OTHERS)[0], count=1)
    if explained:
        text = text.partition(_CAUSE)[0]
    event = rank["event"]
    if not rank["ready"] and not explained and tells_more(event, text):
        text += f" (last event {event})"
    if rank["restarts"]:
        text += f", restarted {rank['restarts']} time{'' if rank['restarts'] == 1 else 's'}"
    return State(f"rank {rank['rank']}", text, rank["node"], (rank["pod"],))


def _said(troubled: Iterable[Mapping[str, Any]], logs: Mapping[str, Sequence[str]]) -> tuple[str, str, Cause | None]:
    """Return the line of a log that tells most, whose it is, and the known cause with its remedy."""
    spoken = [(rank, [line for line in logs.get(rank["pod"], ()) if line.strip()]) for rank in troubled]
    failure = classify(line for _rank, lines in spoken for line in lines)
    if failure:
        rank = next(rank for rank, lines in spoken if any(failure.line in line for line in lines))
        kind = failure.kind.replace("_", " ")
        return failure.line, f"rank {rank['rank']} on {rank['node']}", Cause(kind, failure.remedy)
    for rank, lines in spoken:
        if line := crash_line(lines):
            return line, f"rank {rank['rank']} on {rank['node']}", None
    rank, lines = next(((rank, lines) for rank, lines in spoken if lines), ({}, [""]))
    return lines[-1], f"rank {rank['rank']} on {rank['node']}" if rank else "", None


def _place(ranks: Iterable[Mapping[str, Any]], number: Any) -> str:
    node = next((rank["node"] for rank in ranks if rank["rank"] == number), "")
    return f"NCCL of rank {number} on {node}"


_FAILURE = re.compile(r"rank (?P<rank>\d+) \((?P<pod>[^)]+)\): (?P<text>.*)", re.S)
# What the title says about ranks that talk TCP, and what follows from it.
_SAID = re.compile(
    r"is TCP, and RDMA is expected$|\S* where \S.* is expected$|"
    r"(?:rank \d+ )?uses \d+ of \d+ devices \(NET/Socket/[^)]*\)$"
)


def proof_screen(proof: Mapping[str, Any], plan: Mapping[str, Any], remarks: str) -> Screen:
    """Return the screen for a proof (of module nccl_transport) that failed."""
    group, total = plan["instance"], len(plan["ranks"])
    nodes = {rank["pod"]: rank.get("node", "") for rank in plan["ranks"]}
    causes = roots(proof["causes"])
    tcp = [each for each in proof["ranks"] if each["transport_class"] in ("tcp", "mixed")]
    wrong = bool(tcp) and plan["transport"] == "roce"
    said = [match.groupdict() for text in proof["failures"] if (match := _FAILURE.fullmatch(text))]
    states = [
        State(f"rank {each['rank']}", each["text"], nodes.get(each["pod"], ""), (each["pod"],))
        for each in said
        if not (wrong and _SAID.search(each["text"]))
    ]
    notes = [("Also", text) for text in proof["failures"] if not _FAILURE.fullmatch(text)]
    errors = [finding for finding in proof["findings"] if finding["severity"] == "error"]
    reasons = [
        *(
            Cause(f"{each['key']} = {each['value']!r}: {each['reason']}", each["remedy"], each["where"])
            for each in errors
        ),
        *merged(causes, total),
    ]
    if wrong:
        who = names([f"rank {each['rank']}" for each in tcp], total)
        verb = "talks" if len(tcp) == 1 else "talk"
        title = f"{who[0].upper()}{who[1:]} of group {group} {verb} TCP instead of RoCE."
    elif _measured(proof) and not errors and not proof["failures"] and not _doubted(proof["ledger"]):
        title = f"The transport of group {group} is proved, but a measurement failed."
    else:
        title = f"The transport of group {group} is not proved."
    if not errors and not proof["failures"]:
        notes.insert(0, ("Why", proof["reason"]))
    notes += _moved(proof)
    if remarks:
        notes.append(("Fabric", remarks))
    files = proof["evidence_files"]
    source = str(Path(files[0]).parent) if files else ""
    return Screen(
        title, reasons, states, notes, causes[0]["line"] if causes else "", source, details=files[-1] if files else ""
    )


def _moved(proof: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the counters say, unless the reason of the failure says it."""
    counters, ledger = proof["counters"], proof["ledger"]
    amounts = [counters[kind] for kind in ("rdma_bytes", "tcp_bytes")]
    counted = "{:.1f} MB by RDMA, {:.1f} MB by TCP".format(*(amount / 1e6 for amount in amounts))
    notes = [("Counters", counted if any(amounts) else counters["msg"] or "not read")]
    if _doubted(ledger) and str(ledger["msg"]).partition(":")[0] not in proof["reason"]:
        notes.append(("Bytes that the model exchanged", ledger["msg"]))
    return notes


def _measured(proof: Mapping[str, Any]) -> bool:
    """Tell whether bytes proved the transport, on each cable of a ring, so that only a measurement can have failed."""
    counters = proof["counters"]
    return bool(counters["agrees"] or proof.get("bandwidth")) and all((counters.get("cables") or {}).values())


def _doubted(ledger: Mapping[str, Any]) -> bool:
    """Tell whether the bytes that moved are not those that RDMA alone would explain."""
    return ledger.get("verdict") not in (None, "rdma")
