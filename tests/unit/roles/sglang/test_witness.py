# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the witness of a rank says about real processes, and what it leaves alone."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, watch

FILES = Path(__file__).resolve().parents[4] / "roles/sglang/files"
CHILD = f"""
import importlib.util, sys, threading
from pathlib import Path
spec = importlib.util.spec_from_file_location("front_door", {str(FILES / "front_door.py")!r})
door = importlib.util.module_from_spec(spec)
spec.loader.exec_module(door)
door.STACKS = Path(sys.argv[2])
if sys.argv[1] == "shows":
    door.show_stacks()

def waits_for_the_other_ranks(lock):
    print("ready", flush=True)
    lock.acquire()

lock = threading.Lock()
lock.acquire()
waits_for_the_other_ranks(lock)
"""


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location("witness", FILES / "witness.py")
    assert spec and spec.loader
    made = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "witness", made)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def children(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Yield the process numbers of a server that shows its stacks, and of one that a signal would end."""
    script = tmp_path / "rank.py"
    script.write_text(CHILD)
    started = {
        how: subprocess.Popen([sys.executable, str(script), how, str(tmp_path), "sk-secret"], stdout=subprocess.PIPE)
        for how in ("shows", "hides")
    }
    try:
        for one in started.values():
            assert one.stdout and one.stdout.readline() == b"ready\n"
        yield {how: one.pid for how, one in started.items()}
    finally:
        for one in started.values():
            one.kill()
            one.communicate()


def test_a_server_tells_where_it_waits_another_one_is_not_signalled_and_a_stopped_one_comes_first(
    witness: Any, children: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    proc.mkdir()
    for pid in children.values():
        (proc / str(pid)).symlink_to(f"/proc/{pid}")
    # A file of an earlier process that had this number.
    (tmp_path / str(children["hides"])).touch()

    pause = time.sleep

    def until_written(_seconds: float) -> None:
        while not (tmp_path / str(children["shows"])).read_text().endswith("in <module>\n"):
            pause(0.01)

    monkeypatch.setattr(witness.time, "sleep", until_written)
    said = witness.testimony(os.getpid(), {"sglang::scheduler_TP0", "rank.py"}, proc, tmp_path)
    assert said["gone"] == ["sglang::scheduler_TP0"]
    assert [one["name"] for one in said["processes"]] == ["rank.py", "rank.py"]
    (frames,) = [one["threads"][-1] for one in said["processes"] if one["threads"]]
    assert frames[0].startswith("waits_for_the_other_ranks (") and "/rank.py:" in frames[0]
    assert "secret" not in json.dumps(said)
    os.kill(children["hides"], signal.SIGSTOP)
    os.waitid(os.P_PID, children["hides"], os.WSTOPPED)
    assert witness.testimony(os.getpid(), set(), proc, tmp_path)["processes"][0]["state"] == "T"


def test_only_the_server_and_what_it_started_is_told(witness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {1: 0, 2: 1, 3: 7, 7: 2, 8: 1, os.getpid(): 7, 9: 99}
    told = [witness.Process(pid, parent, "1", "x", "R", 1) for pid, parent in parents.items()]
    monkeypatch.setattr(witness, "all_processes", lambda _proc: iter(told))
    assert [one.pid for one in witness.processes(Path("/proc"), 2)] == [2, 3, 7]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sglang::scheduler_TP0", ""], "sglang::scheduler_TP0"),
        (["sglang::scheduler --api-key=sk-1"], "sglang::scheduler"),
        (["/usr/bin/python3", "/opt/gb10/front_door.py", "sglang.launch_server", "--api-key", "k"], "front_door.py"),
        (["/usr/bin/python3", "-c", "from x import y; y(key='k')"], "python3"),
        (["nvcc", "-o", "k.o"], "nvcc"),
        ([""], "sglang::schedul"),
    ],
)
def test_a_command_line_is_told_without_its_arguments(witness: Any, words: list[str], name: str) -> None:
    assert witness.name_of(words, "sglang::schedul") == name


@pytest.mark.parametrize("text", ["", "\0\xff" * 999, '  File "x", line 1 in f\n', "Thread 0x1 (most recent call fir"])
def test_a_file_without_whole_stacks_has_no_threads(witness: Any, text: str) -> None:
    assert witness.threads(text) == []


def test_an_answer_is_bounded(witness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness.time, "sleep", lambda _seconds: None)
    stack = "Thread 0x1 (most recent call first):\n" + f'  File "/{"d" * 99}/x", line 1 in {"n" * 99}\n' * 99
    many = [witness.Process(pid, 1, "1", "sglang::worker", "R", 1) for pid in range(1 << 30, (1 << 30) + 99)]
    for one in many:
        (tmp_path / str(one.pid)).write_text(stack * 9)
    monkeypatch.setattr(witness, "processes", lambda _proc, _server: many)
    said = witness.testimony(1, set(), tmp_path, tmp_path)
    assert 1 < len(said["processes"]) <= witness.PROCESSES and len(json.dumps(said)) <= witness.MOST


def test_the_sidecar_reaches_the_witness_in_a_directory_with_a_long_name(witness: Any, tmp_path: Path) -> None:
    base = tmp_path / ("d" * 120)
    base.mkdir()
    with witness.listen(base) as listening:

        def answer() -> None:
            connection, _address = listening.accept()
            with connection:
                connection.sendall(b'{"processes": [], "gone": ["sglang::scheduler_TP0"]}')

        thread = threading.Thread(target=answer)
        thread.start()
        assert evidence.ask_witness(base)["gone"] == ["sglang::scheduler_TP0"]
        thread.join()
    assert (base / witness.SOCKET).stat().st_mode & 0o777 == 0o666
    with pytest.raises(OSError):
        evidence.ask_witness(tmp_path)


def test_the_witness_ends_with_its_server(witness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 1])
    monkeypatch.setattr(witness.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(witness, "EVERY", 0.01)
    monkeypatch.setattr(witness, "processes", lambda _proc, _server: [])
    monkeypatch.setattr(witness.sys, "argv", ["witness.py", str(tmp_path)])
    witness.main()
    assert next(parents, None) is None


class Nvml:
    """The calls of libnvidia-ml.so.1 for two GPUs; each of ``rounds`` has the reasons, clock and use of both."""

    def __init__(self, rounds: list[list[tuple[int, int, int]]], faults: list[int], registers: int = 0) -> None:
        self.rounds, self.faults, self.registers = rounds, faults, registers

    def __getattr__(self, name: str) -> Any:
        if name not in {"nvmlInit_v2", "nvmlEventSetCreate"}:
            raise AttributeError(name)
        return lambda *_words: 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, device: Any) -> int:
        device._obj.value = number + 1
        return 0

    def nvmlDeviceRegisterEvents(self, _device: Any, kind: Any, _events: Any) -> int:
        assert kind.value == 8
        return self.registers

    def nvmlEventSetWait_v2(self, _events: Any, fault: Any, milliseconds: int) -> int:
        assert milliseconds > 0
        if not self.faults:
            return 10
        fault._obj.code = self.faults.pop(0)
        return 0

    def _now(self, device: Any) -> tuple[int, int, int]:
        return self.rounds[0][device.value - 1]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, reasons: Any) -> int:
        reasons._obj.value = self._now(device)[0]
        return 0

    def nvmlDeviceGetClockInfo(self, device: Any, kind: int, clock: Any) -> int:
        assert kind == 1
        clock._obj.value = self._now(device)[1]
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, use: Any) -> int:
        use._obj.gpu = self._now(device)[2]
        return 0

    def nvmlDeviceGetPowerUsage(self, _device: Any, power: Any) -> int:
        power._obj.value = 29500
        return 0

    def nvmlDeviceGetTemperature(self, _device: Any, _kind: int, _heat: Any) -> int:
        return 3


CALM = (0x4, 2400, 95)


def test_the_faults_and_slow_seconds_of_the_gpus_are_counted(witness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "GPU_EVERY", 0.01)
    nvml = Nvml([[CALM, CALM], [(0x40, 900, 81), CALM], [(0x80, 999, 80), (0x20, 1000, 100)]], [79, 31, 31])
    gpus = witness.Gpus(nvml)
    for _round in range(3):
        gpus.look()
        nvml.rounds.pop(0)
    assert gpus.xid == {79: 1, 31: 2}
    assert gpus.seconds == {"gpu_hot": 0.02, "gpu_brake": 0.01, "gpu_slow": 0.01}
    assert gpus.now[1] == {"reasons": 0x20, "busy_percent": 100, "mhz": 1000, "watts": 29}


@pytest.mark.parametrize("registers", [0, 3])
def test_the_sidecar_reads_what_is_counted_until_nvml_fails(
    registers: int, witness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may tell no faults (3, not supported), and still has a clock."""
    monkeypatch.setattr(witness, "GPU_EVERY", 1)
    clock = SimpleNamespace(monotonic=count(0, 0.5).__next__, sleep=lambda _seconds: None, time=time.time)
    monkeypatch.setattr(witness, "time", clock)
    looks = []

    class Ends(Nvml):
        def nvmlDeviceGetClockInfo(self, device: Any, kind: int, clock: Any) -> int:
            looks.append(kind)
            if len(looks) > 2:
                raise OSError("the library is gone")
            return super().nvmlDeviceGetClockInfo(device, kind, clock)

    nvml = Ends([[(0x40, 900, 81), CALM]], [79], registers)
    witness.watch_gpus(tmp_path, lambda _name: nvml)
    told = {"gpu_hot": 1, "gpu_brake": 0, "gpu_slow": 1} | ({} if registers else {"xid_79": 1})
    assert watch.of_gpu(tmp_path) == ({(-1, name): times for name, times in told.items()}, bool(registers))


def test_without_a_gpu_nothing_is_counted(witness: Any, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    witness.watch_gpus(tmp_path, missing)
    witness.watch_gpus(tmp_path, lambda _name: object())
    assert list(tmp_path.iterdir()) == []
    assert witness.GPU == evidence.GPU


def dump(called: int = 8, **more: Any) -> dict[str, Any]:
    """Return what PyTorch 2.11 wrote of a rank, shortened."""
    entry = {"process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "state": "scheduled"}
    counts = {"last_enqueued_collective": called, "last_started_collective": -1, "last_completed_collective": 7}
    return {"version": "2.10", "pg_status": {"0": counts}, "entries": [entry], **more}


def test_each_process_of_pytorch_is_asked_and_the_last_one_of_a_group_is_told(
    witness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = []
    for number in range(2):
        os.mkfifo(tmp_path / f"torch.pipe.{number}.pipe")
        readers.append(os.open(tmp_path / f"torch.pipe.{number}.pipe", os.O_RDONLY | os.O_NONBLOCK))
    # Nobody reads this one any more.
    os.mkfifo(tmp_path / "torch.pipe.2.pipe")
    (tmp_path / "torch.dump.0").write_bytes(b"of an earlier hang")
    dumps = witness.ask_torch(tmp_path)
    assert [path.name for path in dumps] == ["torch.dump.0", "torch.dump.1"] and not dumps[0].exists()
    assert [os.read(reader, 9) for reader in readers] == [b"1\n"] * 2
    whole = pickle.dumps(dump(7))
    dumps[0].write_bytes(whole[:-9])
    dumps[1].write_bytes(pickle.dumps(dump(8, pg_status={**dump()["pg_status"], "1": {"last_enqueued_collective": 2}})))
    monkeypatch.setattr(witness.time, "sleep", lambda _seconds: dumps[0].write_bytes(whole))
    assert witness.recorded(dumps, time.monotonic() + 60) == [
        {"group": "0", "called": 7, "last": "nccl:all_reduce"},
        {"group": "1", "called": 2, "last": ""},
    ]


class Runs:
    """A value whose pickle runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize(
    "value",
    [Runs(), dump(entries=[Runs()]), {}, [], 7, dump(entries=[{}]), dump(pg_status={0: {}}), dump(pg_status=[])],
)
def test_a_dump_runs_nothing_and_may_have_any_form(
    witness: Any, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.dump.0").write_bytes(pickle.dumps(value))
    assert witness.recorded([tmp_path / "torch.dump.0"], time.monotonic() + 0.1) == []
    assert not (tmp_path / "ran").exists()
