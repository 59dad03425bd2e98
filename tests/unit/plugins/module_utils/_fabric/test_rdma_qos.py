# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a port's classes are read from dcb's output, and set and restored with the fewest commands."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import qos
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.qos import Qos
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from hypothesis import given
from hypothesis import strategies as st

PFC = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:on \n"
ONLY_3 = "prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off"
WANTED = Qos(frozenset([3]), {26: 3, 48: 6})
UNTOUCHED = Qos(frozenset(), {26: None, 48: None})
CLASS = st.integers(0, 7)
STATES = st.builds(Qos, st.frozensets(CLASS), st.fixed_dictionaries({26: st.none() | CLASS, 48: st.none() | CLASS}))


def run(port: Qos, commands: list[list[str]]) -> Qos:
    """Apply a dcb command to a simulated port."""
    lossless, classes = port.lossless, dict(port.classes)
    for _dcb, thing, action, _dev, name, _kind, *entries in commands:
        assert name == "p0"
        if thing == "pfc":
            lossless = qos.parse_pfc(" ".join(entries))
        for dscp, number in qos.parse_dscp(" ".join(entries)).items() if thing == "app" else ():
            assert action != "del" or classes[dscp] == number
            classes[dscp] = None if action == "del" else number
    return Qos(lossless, classes)


def test_the_output_of_dcb_is_parsed() -> None:
    assert qos.parse_pfc(PFC) == {3, 7}
    assert qos.parse_dscp("dscp-prio 0:0 26:3 48:6 \n") == {0: 0, 26: 3, 48: 6}
    assert qos.parse_dscp("") == {}


@given(before=STATES, wanted=STATES)
def test_any_state_is_reached_and_left_again(before: Qos, wanted: Qos) -> None:
    reached = run(before, qos.steps("p0", before, wanted))
    assert reached == wanted
    assert run(reached, qos.steps("p0", reached, before)) == before


@given(STATES)
def test_the_configuration_keeps_what_was_before(before: Qos) -> None:
    config = json.loads(qos.configuration(WANTED, {"p1": UNTOUCHED, "p0": before}, ["p0"], 60))
    assert qos.from_dict(config["wanted"]) == WANTED
    assert {port: qos.from_dict(state) for port, state in config["origin"].items()} == {"p0": before, "p1": UNTOUCHED}


@pytest.mark.parametrize(
    ("now", "wanted", "commands"),
    [
        (Qos(frozenset([3]), {26: 3}), Qos(frozenset([3]), {26: 4}), ["dcb app replace dev p0 dscp-prio 26:4"]),
        (Qos(frozenset([3]), {26: 3}), Qos(frozenset([3]), {26: None}), ["dcb app del dev p0 dscp-prio 26:3"]),
        (Qos(frozenset(), {26: None}), Qos(frozenset(), {26: 0}), ["dcb app replace dev p0 dscp-prio 26:0"]),
        (Qos(frozenset(), {26: 0}), Qos(frozenset(), {26: None}), ["dcb app del dev p0 dscp-prio 26:0"]),
        (Qos(frozenset(), {}), Qos(frozenset(), {26: None}), []),
        (WANTED, WANTED, []),
        (
            UNTOUCHED,
            WANTED,
            [f"dcb pfc set dev p0 {ONLY_3}", *(f"dcb app replace dev p0 dscp-prio {x}" for x in ("26:3", "48:6"))],
        ),
    ],
)
def test_the_command_for_each_change_of_a_dscp(now: Qos, wanted: Qos, commands: list[str]) -> None:
    assert [" ".join(command) for command in qos.steps("p0", now, wanted)] == commands


def test_at_boot_every_port_gets_its_classes_and_a_failure_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    waited: list[float] = []

    def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        text = " ".join(argv)
        if "lo" in argv:
            raise system.HostError("RTNETLINK answers: Operation not supported")
        ran.append(text)
        said = PFC if "pfc show" in text else "dscp-prio 26:3 10:1\n"
        return subprocess.CompletedProcess(list(argv), 0, said, "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "wait_for", lambda _probe, timeout: waited.append(timeout))
    config = tmp_path / "qos.json"
    config.write_text(qos.configuration(WANTED, {"p0": UNTOUCHED}, ["lo", "p0"], 60))
    (problem,) = qos.boot(config)
    assert problem.startswith("lo: its classes can't be read (RTNETLINK answers: Operation not supported)")
    assert ran == [
        "dcb pfc show dev p0 prio-pfc",
        "dcb -N app show dev p0 dscp-prio",
        f"dcb pfc set dev p0 {ONLY_3}",
        "dcb app replace dev p0 dscp-prio 48:6",
    ]
    assert waited == [60, 60]
    assert qos.observe("p0", [26, 48]) == Qos(frozenset([3, 7]), {26: 3, 48: None})
