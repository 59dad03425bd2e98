# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the start of a rank: a new directory for NCCL's files, the node's memory, the patch hooks, then the server."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stored import compare
from sysfs_samples import mlx5_vf

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/start_rank.py"
SERVER = """
import os
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "host").replace("%p", str(os.getpid()))
open(path, "w").write("line\\n")
print(path, os.getpid())
"""


def start(logs: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FILE), "--nccl-logs", str(logs), *words, "--", sys.executable, "-c", SERVER]
    environment = {**os.environ, "NCCL_DEBUG_FILE": "/dev/stdout"} | (env or {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_start_has_its_own_directory_and_nothing_of_the_start_before(tmp_path: Path) -> None:
    """Links that a server left are deleted and not followed."""
    kept, logs, seen = tmp_path / "kept", tmp_path / "logs", []
    kept.mkdir()
    (kept / "file").write_text("x")
    logs.mkdir()
    for _start in range(2):
        (logs / "link").symlink_to(kept)
        (logs / "plain").write_text("NCCL INFO via NET/IB/0")
        done = start(logs)
        assert done.returncode == 0, done.stderr
        path, pid = done.stdout.split()
        seen.append(Path(path).parent)
        assert [str(file) for file in logs.glob("*/*")] == [str(seen[-1] / f"host.{pid}")]
        assert {file.name for file in logs.iterdir()} == {seen[-1].name, "environment.json"}
        assert seen[-1].stat().st_mode & 0o777 == 0o755
    assert seen[0] != seen[1] and (kept / "file").exists()


def test_the_server_is_the_first_to_end_when_memory_runs_out(tmp_path: Path) -> None:
    command = [sys.executable, str(FILE), "--nccl-logs", str(tmp_path), "--", "cat", "/proc/self/oom_score_adj"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1000\n"


def test_the_sidecar_can_read_which_variables_may_hide_the_transport(tmp_path: Path) -> None:
    given = {"NCCL_DEBUG": "WARN", "NCCL_HOSTID": "", "NCCL_ALGO": "Ring"}
    assert start(tmp_path, env=given).returncode == 0
    written = tmp_path / "environment.json"
    assert json.loads(written.read_text()) == {"NCCL_DEBUG": "WARN", "NCCL_HOSTID": ""}
    assert written.stat().st_mode & 0o777 == 0o644


def test_a_rank_has_a_witness_and_a_watch_of_its_load_beside_its_server(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setenv("NCCL_DEBUG_FILE", "restored after the test")
    monkeypatch.setattr(started, "fresh_directory", lambda base: base / "1")
    monkeypatch.setattr(started, "STACKS", tmp_path / "stacks")
    monkeypatch.setattr(started.subprocess, "Popen", lambda words, **_quiet: ran.append(words))
    monkeypatch.setattr(started, "end_first", lambda: None)
    monkeypatch.setattr(started.os, "execvp", lambda _program, words: ran.append(words))
    watched = ["--watch-load=--port 1 --stop 3", "--model", "/m"]
    for more in ([], ["--witness"], watched):
        monkeypatch.setattr(started.sys, "argv", ["start_rank.py", "--nccl-logs", str(tmp_path), *more, "--", "server"])
        started.main()
    witness, watch = (
        [sys.executable, str(FILE.with_name(name)), str(tmp_path)] for name in ("witness.py", "watch_load.py")
    )
    watch += ["--port", "1", "--stop", "3", "--model", "/m"]
    assert ran == [["server"], witness, ["server"], watch, ["server"]]
    assert (tmp_path / "stacks").stat().st_mode & 0o777 == 0o700


def test_without_a_directory_the_server_is_not_started(tmp_path: Path) -> None:
    done = start(tmp_path / "missing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no new directory for NCCL's logs can be made, so the server is not started" in done.stderr


def test_nccl_gets_the_rdma_device_that_has_the_address_of_an_interface(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    mlx5_vf(tmp_path / "sys", address="127.0.0.1")
    done = start(logs, "--rails", "lo", "--sysfs", str(tmp_path / "sys"))
    assert done.stdout.startswith("NCCL_IB_HCA =rocep1s0f0v0, of lo\n"), done.stderr
    monkeypatch.setattr(started.time, "sleep", lambda _seconds: None)
    with pytest.raises(started.RefusedError, match=r"no RDMA device has a RoCE v2 GID for the address of lo \(127"):
        started.find_devices(["lo"], tmp_path, 0)
    missing = start(logs, "--rails", "absent0", "--sysfs", str(tmp_path))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "the RDMA devices of absent0: " in missing.stderr


def test_a_patch_that_fails_stops_the_start(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("print('applied')")
    bad.write_text("raise SystemExit(3)")
    logs = tmp_path / "logs"
    logs.mkdir()
    assert "applied" in start(logs, "--patch", str(good)).stdout
    done = start(logs, "--patch", str(good), "--patch", str(bad))
    assert done.returncode == 1
    assert "patch bad failed with exit code 3; the server is not started" in done.stderr
    assert "host." not in done.stdout


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the program as a module whose clock is moved by its own sleeping."""
    spec = spec_from_file_location("start_rank", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(module, "time", clock)
    return module


# The GiB that are available one after the other, the last one from then on, and the seconds to wait at most
AVAILABLE: dict[str, tuple[tuple[float, ...], float]] = {
    "stable": ((115.0,), 60),
    "held by an earlier server": ((*map(float, range(10, 115, 5)), 115.0), 60),
    "a pause of an earlier server that gives its memory back": ((88.0, 88.0, 88.0, 118.0), 60),
    "never as much as planned": ((88.0,), 300),
    "too little for the weights": ((18.0,), 60),
    "still growing at the timeout": ((30.0, 40.0, 50.0, 60.0), 4),
}
# The GiB of 100 that are free one after the other, 80 of them available
FREE = {"free": (60.0,), "full until the node has dropped its caches": (2.0, 2.0, 75.0), "always full": (2.0,)}
BUDDYINFO = """\
Node 0, zone      DMA      1      0      0      0      0      0      0      0      0      1      3
Node 0, zone   Normal   4616      1      1      1      1      1      1      1      1     10    100
"""


def waited(
    started: Any, monkeypatch: pytest.MonkeyPatch, what: str, readings: Sequence[float], wait: Callable[[], str]
) -> list[str]:
    """Return what is said, printed and refused while the memory has these readings, and how long it took."""
    later = itertools.chain(readings, itertools.repeat(readings[-1]))
    printed: list[str] = []
    monkeypatch.setattr(started, "print", lambda text, **_options: printed.append(text), raising=False)
    sizes: dict[str, float] = {"MemTotal": 100, "MemAvailable": 80}
    monkeypatch.setattr(started, "size_of", lambda _path, name: next(later) if name == what else sizes[name])
    begun = started.time.monotonic()
    try:
        said = wait()
    except started.RefusedError as error:
        said = f"refused: {error}"
    return [*printed, *said.splitlines(), f"after {started.time.monotonic() - begun:g} s"]


def test_waits_for_memory_are_those_that_are_stored(
    started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "buddyinfo").write_text(BUDDYINFO)
    paths = tmp_path / "meminfo", tmp_path / "buddyinfo"
    found = {}
    for name, (readings, timeout) in AVAILABLE.items():
        wait = partial(started.wait_for_memory, 14.6, 0.8, 103.0, 109.0, timeout, paths[0])
        found[name] = waited(started, monkeypatch, "MemAvailable", readings, wait)
    for name, free in FREE.items():
        found[name] = waited(started, monkeypatch, "MemFree", free, partial(started.wait_for_caches, (), 60, *paths))
    compare("start_memory", found)
    assert started.in_large_blocks(BUDDYINFO, 4096) == (11 * 2 + 103 * 4) / 1024
    # With pages of 64 KiB, such a block has only 32 of them.
    assert started.in_large_blocks(BUDDYINFO.splitlines()[0], 65536) == (32 + 3 * 64) / 1024


def test_a_model_that_was_just_downloaded_is_dropped_from_the_page_cache_without_any_privilege(
    started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dropped: list[str] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        dropped.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)

    monkeypatch.setattr(started.os, "posix_fadvise", advise)
    model = tmp_path / "model"
    (model / "deeper").mkdir(parents=True)
    (model / "a.safetensors").touch()
    (model / "deeper" / "b.safetensors").touch()
    os.mkfifo(model / "pipe")
    # A file that this user can't read does not prevent the start.
    (model / "config.json").touch()
    opened = started.Path.open

    def refused(path: Path, *words: Any, **more: Any) -> Any:
        if path.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return opened(path, *words, **more)

    monkeypatch.setattr(started.Path, "open", refused)
    (tmp_path / "buddyinfo").write_text(BUDDYINFO)
    models = (model, tmp_path / "missing")
    wait = partial(started.wait_for_caches, models, 60, tmp_path / "meminfo", tmp_path / "buddyinfo")
    said = waited(started, monkeypatch, "MemFree", [*[2.0] * 6, 60.0], wait)
    assert sorted(dropped) == ["a.safetensors", "b.safetensors"]
    assert said[-1] == f"after {started.CACHES_DROPPED + started.LOOK_EVERY:g} s" and "60.0 GiB are free" in said[-2]


def test_weights_of_unknown_size_are_measured_where_the_model_is(started: Any, tmp_path: Path) -> None:
    assert started.size_of_weights([], 2) == 0
    model, draft = tmp_path / "model", tmp_path / "draft"
    for place, name, mib in ((model, "a", 512), (model, "b", 512), (model, "consolidated", 1024), (draft, "d", 1024)):
        place.mkdir(exist_ok=True)
        with (place / f"{name}.safetensors").open("wb") as file:
            file.truncate(mib << 20)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    # A file that is not in the index is not loaded.
    assert started.size_of_weights([model, draft, tmp_path / "missing"], 2) == 1.0
    for text in ("[]", "{", '{"weight_map": {"x": "gone.safetensors"}}'):
        (model / "model.safetensors.index.json").write_text(text)
        assert started.size_of_weights([model], 1) == 0


@pytest.mark.parametrize(
    ("available", "words", "said"),
    [
        ("10485760", "0 0.8 10 10 0 --model MODEL", "without 9.0 GiB of weights leave -1.0 GiB"),
        ("10485760", "0 0.8 10 10 0", "without weights, whose size is unknown, leave 8.0 GiB"),
        ("10485760", "0 0.8 10 10 0 --model MODEL --shares 2", "without 4.5 GiB of weights leave 3.5 GiB"),
        ("8388608", "14.6 0.8 103 109 0", "sglang_memory_timeout: 0"),
        ("", "1 1 1 1 0", "has no line MemAvailable"),
    ],
)
def test_a_start_looks_at_memory_and_measures_weights_that_the_plan_does_not_know(
    available: str, words: str, said: str, tmp_path: Path
) -> None:
    meminfo, logs, model = tmp_path / "meminfo", tmp_path / "logs", tmp_path / "model"
    lines = f"MemAvailable: {available} kB\nMemFree: {available} kB\n" if available else ""
    meminfo.write_text(f"MemTotal: 124780544 kB\n{lines}")
    logs.mkdir()
    model.mkdir()
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(9 << 30)
    done = start(logs, "--meminfo", str(meminfo), "--memory", *words.replace("MODEL", str(model)).split())
    refused = "leave -" in said or "leave" not in said
    assert (done.returncode, said in (done.stderr if refused else done.stdout)) == (int(refused), True), done
    assert not refused or done.stdout == ""


ENDED = {"state": "ended", "key": "k", "times": 3, "before_gib": 10}


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        (ENDED, 9),
        (ENDED | {"times": 2}, 10),
        (ENDED | {"key": "other"}, 10),
        ({"state": "ready", "key": "k", "before_gib": 10}, 10),
        ({"state": "ended", "key": "k", "times": 3}, 10),
        ("{", 10),
        (None, 10),
    ],
)
def test_only_a_load_that_was_ended_again_and_again_is_not_tried_with_as_little_memory(
    told: Any, taken: float, started: Any, tmp_path: Path
) -> None:
    kept, meminfo = tmp_path / "kept.json", tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {100 << 20} kB\nMemAvailable: {(100 - taken) * 2**20:.0f} kB\n")
    if told is not None:
        kept.write_text(told if isinstance(told, str) else json.dumps(told))
    words = f"--port 1 --stop 3.5 --key k --kept {kept}".split()
    started.refuse_again(words, meminfo)
    started.refuse_again([], meminfo)
    kept.write_text(json.dumps(ENDED | {"before_gib": taken}))
    with pytest.raises(
        started.RefusedError, match=rf"ended 3 times in a row.* {taken}\.0 GiB are taken now, as before"
    ):
        started.refuse_again(words, meminfo)


def test_the_start_asks_before_it_loads_whether_the_load_was_ended(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"state": "ended", "key": "k", "times": 3, "before_gib": 0}))
    logs = tmp_path / "logs"
    logs.mkdir()
    memory = ["--memory", "0.001", "0.9", "0.001", "0.001", "0"]
    done = start(logs, *memory, f"--watch-load=--port 1 --key k --kept {kept}")
    assert done.returncode == 1 and "The server is not started. Change its settings" in done.stderr
