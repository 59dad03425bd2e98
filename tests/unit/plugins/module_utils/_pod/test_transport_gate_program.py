# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the program of the sidecar: its settings, threads, probes and pages."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import MEMORY
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from gate_rank import GATE, FakeApi, Rank, page_of


def test_probes_and_metrics_fail_while_the_sidecar_hangs_or_the_api_does_not_know_of_a_lost_proof(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(sidecar.time, "monotonic", lambda: clock[0])
    rank.watch.judged_at = 0.0
    page = page_of(monkeypatch, rank.watch.gate, rank.watch)

    def asked() -> list[int]:
        answers = {path: page(path) for path in ("/live", "/ready", "/metrics")}
        assert [path for path, (_code, text) in answers.items() if text] == ["/metrics"] * (answers["/live"][0] == 200)
        return [code for code, _text in answers.values()]

    def turn() -> None:
        rank.turn(clock[0] - rank.now)

    rank.nccl("1")
    rank.step()
    assert asked() == [200, 200, 200]
    clock[0] = 32.5
    assert asked() == [200, 200, 200]
    clock[0] = 33.0
    assert asked() == [503, 503, 503]
    turn()
    assert asked() == [200, 200, 200]
    rank.api.away = True
    # A proof that stays needs no answer of the API server.
    turn()
    assert asked() == [200, 200, 200]
    rank.nccl("1", net="Socket")
    with pytest.raises(OSError, match="no route to host"):
        turn()
    assert asked() == [200, 503, 200]
    rank.api.away = False
    turn()
    assert rank.api.conditions[-1].reason == "WrongTransport"
    assert asked() == [200, 200, 200]


def test_prometheus_gets_the_metrics_and_nothing_else(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.nccl("1")
    rank.step()
    memory = sidecar.NodeMemory(sidecar.Limits(), rank.api, rank.watch.gate.labels)  # type: ignore[arg-type]
    memory.text = "gb10_memory_step 0"
    server = sidecar.serve_metrics(rank.watch.gate, rank.watch, memory)
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            said = answer.read()
        assert b"gb10_transport_proven" in said and said.endswith(b"gb10_memory_step 0")
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/token", timeout=60)
        memory.judged_at -= 30
        with pytest.raises(HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/live", timeout=60)
        # A client that asks nothing is sent away.
        monkeypatch.setattr(server.RequestHandlerClass, "timeout", server.RequestHandlerClass.timeout / 100)
        with socket.create_connection(server.server_address, timeout=60) as idle:
            assert idle.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()


def test_the_program_as_it_is_shipped_repeats_lines_and_ends_at_once_when_its_pod_ends(tmp_path: Path) -> None:
    for path, source in package_files("_pod.sidecar", tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    start = tmp_path / "logs" / "1"
    start.mkdir(parents=True)
    (start / "h.40").write_text("h:40:40 [0] NCCL INFO Using network IB\n")
    command = [sys.executable, "-m", "gb10._pod.sidecar", "--nccl-logs", str(start.parent)]
    with subprocess.Popen(command, env={"PYTHONPATH": str(tmp_path)}, cwd="/", stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"h:40:40 [0] NCCL INFO Using network IB\n"
        program.terminate()
        assert program.wait(60) == 0


def test_one_part_that_fails_or_hangs_does_not_keep_the_others_from_their_work(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs, ended, turns = threading.Event(), threading.Event(), []

    class Memory:
        text = ""

        def __init__(self, *_words: object, **_more: object) -> None:
            """Watch nothing."""

        def step(self, _now: float) -> None:
            raise RuntimeError("a fault of this program")

    class Ended(Exception):
        """Ends a loop."""

    def rest(_seconds: float) -> None:
        turns.append(threading.current_thread().name)
        if rank.api.conditions:
            ended.set()
        if ended.wait(0.01):
            raise Ended

    def hang(_name: str) -> None:
        hangs.wait(20)
        raise OSError("timed out")

    gate = json.dumps(GATE | {"memory": {"stop": 4}, "sysfs_root": str(rank.sysfs)})
    rank.nccl("1", net="Socket")
    monkeypatch.setenv("POD_NAMESPACE", "s")
    monkeypatch.setenv("POD_UID", "u")
    monkeypatch.setattr(rank.api, "pod", hang)
    monkeypatch.setattr(sidecar, "NodeMemory", Memory)
    monkeypatch.setattr(sidecar, "PodApi", lambda *_words: rank.api)
    monkeypatch.setattr(sidecar, "keep", lambda work, _answers: work())
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    # Only the sidecar's own pause: module subprocess sleeps too while it waits for a program.
    monkeypatch.setattr(sidecar, "time", SimpleNamespace(**vars(time) | {"sleep": rest}))
    monkeypatch.setattr(sidecar, "serve_metrics", lambda *_words: None)
    monkeypatch.setattr(
        sys, "argv", ["sidecar", "--nccl-logs", str(rank.logs), "--gate", gate, "--state", str(rank.logs)]
    )
    before = set(threading.enumerate())
    with pytest.raises(Ended):
        sidecar.main()
    hangs.set()
    # A thread that rests after the test would rest for ever, as the pause is then the real one.
    for thread in set(threading.enumerate()) - before:
        thread.join()
    # Rank 0 judged and published while its question about rank 1 had no answer.
    assert [one.reason for one in rank.api.conditions] == ["WrongTransport"]
    assert "trying again: RuntimeError('a fault of this program')" in capsys.readouterr().out


def test_without_a_transport_to_prove_only_the_memory_is_watched(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(sidecar.time, "monotonic", lambda: clock[0])
    gate = replace(rank.watch.gate, expect=None)
    memory = sidecar.NodeMemory(sidecar.Limits(stop=4), FakeApi(MEMORY), gate.labels)  # type: ignore[arg-type]
    page = page_of(monkeypatch, gate, None, memory)
    memory.step(0)
    for clock[0], code in ((29.5, 200), (34.0, 503)):
        assert [page(path)[0] for path in ("/live", "/metrics")] == [code] * 2
    memory.step(34.0)
    assert [page(path)[0] for path in ("/live", "/metrics")] == [200] * 2


def test_the_settings_have_all_rails(rank: Rank) -> None:
    planned = [*GATE["rails"], {"device": "mlx1", "interface": "net2", "address": "10.101.0.1", "mtu": 9000}]
    given = GATE | {"sysfs_root": "/sys", "rails": planned, "memory": {"stop": 3}}
    gate = sidecar.Gate.parse(json.dumps(given))
    assert [rail.device for rail in gate.rails] == ["mlx0", "mlx1"]
    assert gate.memory == sidecar.Limits(stop=3)
    assert (gate.pod, rank.watch.gate.memory) == ("g-0-0", None)


@pytest.mark.parametrize(
    ("expect", "memory", "steps"),
    [
        (GATE["expect"], None, ["Health.step", "Load.step", "Watch.ask", "Watch.publish", "Watch.step"]),
        (None, {"stop": 4}, ["Health.step", "Load.step", "NodeMemory.step"]),
        (
            GATE["expect"],
            {"stop": 4},
            ["Answers.step", "Health.step", "Load.step", "NodeMemory.step", "Watch.ask", "Watch.publish", "Watch.step"],
        ),
        (None, None, ["Health.step", "Load.step"]),
    ],
)
def test_the_program_does_what_its_settings_ask_for(
    expect: object, memory: object, steps: list[str], rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = "report" if "Answers.step" in steps else "off"
    given = json.dumps(GATE | {"sysfs_root": str(rank.sysfs), "expect": expect, "memory": memory, "answers": asks})
    done: list[str] = []
    served: list[Any] = []
    lived: list[int] = []
    kept: list[Any] = []
    monkeypatch.setenv("POD_NAMESPACE", "s")
    monkeypatch.setenv("POD_UID", "u")
    monkeypatch.setattr(sidecar, "PodApi", lambda *_words: rank.api)
    monkeypatch.setattr(sidecar, "serve_metrics", lambda *words: served.extend(words))
    monkeypatch.setattr(sidecar, "forever", lambda _interval, step: done.append(step.__qualname__))
    monkeypatch.setattr(sidecar, "keep", lambda *words: kept.extend(words))
    monkeypatch.setattr(sidecar, "lives", lived.append)
    monkeypatch.setattr(threading, "Thread", Thread)
    for more in (["--gate", given, "--state", str(rank.logs)], []):
        monkeypatch.setattr(sys, "argv", ["sidecar", "--nccl-logs", str(rank.logs), *more])
        sidecar.main()
    for work in kept[::2]:
        work()
    repeated = ["work.<locals>.<lambda>"]
    assert sorted(done) == sorted(steps + repeated * 2)
    assert [bool(part) for part in served[1:]] == [bool(expect), bool(memory), True, asks != "off", True, True]
    # Without a gate there is no page to ask for.
    assert ([answers() for answers in kept[1::2]], lived) == ([None, True], [0])


class Thread:
    """Does its work at once."""

    def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
        self._work = lambda: target(*args)
        assert daemon

    def start(self) -> None:
        self._work()


def test_the_lines_of_all_files_are_repeated(rank: Rank, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rank.nccl("1", lines=1)
    (rank.logs / "1/g-0-0.41").write_text("other\n")
    sidecar.repeat(rank.watch.files)
    assert len(capsysbinary.readouterr().out.splitlines()) == 2


def test_a_step_is_repeated_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []

    class Ended(Exception):
        """Ends the loop."""

    def rest(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            raise Ended

    monkeypatch.setattr(sidecar, "time", SimpleNamespace(**vars(time) | {"sleep": rest}))
    with pytest.raises(Ended):
        sidecar.forever(2.5, lambda _now: None)
    assert turns == [2.5] * 3
