# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar of a rank collects about a hang."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Rail
from gate_rank import page_of
from sysfs_samples import mlx5_vf

RAIL = Rail("mlx0", "lo", "10.100.0.1", 1500)
# What NCCL 2.28.9 answered when rank 1 of four had been killed (tests/gpu/hang.py), without ranks 2 and 3; a comma is
# missing after the last "nvml_dev".
RAS = """OK
OK
{
  "nccl_version": "2.28.9",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-29 08:18:54",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0x7cfb8b7c534eb867",
      "secondary_hash": "0xeff7e01f7ddcf139:0x1e4a2aef798c7a72",
      "size": 4,
      "ranks_count": 3,
      "missing_ranks_count": 1,
      "ranks": [
        {
          "rank": 0,
          "host": "10.100.0.1",
          "pid": 583,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 6,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 0,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": 7
          }
        }
      ],
      "missing_ranks": [
        {
          "rank": 1,
          "host": "10.100.0.2",
          "pid": 584,
          "cuda_dev": 0,
          "nvml_dev": 0
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]
    }
  ],
  "ras": {
    "collection_time_sec": 0.001,
    "timeouts_count": 0
  }
}
"""


def test_nccl_s_own_counts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def ras() -> None:
            connection, _address = listening.accept()
            with connection:
                asked.append(connection.recv(999))
                connection.sendall(RAS.encode())

        thread = threading.Thread(target=ras)
        thread.start()
        told = evidence.ask_nccl(listening.getsockname())
        thread.join()
    assert evidence._RAS == ("localhost", 28028)
    assert b"SET FORMAT json\nVERBOSE STATUS\n" in asked[0]
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 7}
    begun = {"rank": 0, "host": "10.100.0.1", "begun": counts}
    assert told == [
        {"hash": "0x7cfb8b7c534eb867", "ranks": [begun, {"rank": 1, "host": "10.100.0.2", "missing": True}]}
    ]


def test_an_answer_without_an_end_is_cut_off_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow:
        """Sends one byte every three seconds."""

        limit = evidence._WAIT

        def settimeout(self, seconds: float) -> None:
            self.limit = seconds

        def recv(self, _size: int) -> bytes:
            clock[0] += min(3, self.limit)
            if self.limit < 3:
                raise TimeoutError
            assert clock[0] < 60
            return b"x"

    monkeypatch.setattr(evidence.time, "monotonic", lambda: clock[0])
    with pytest.raises(TimeoutError):
        evidence._everything(Slow())  # type: ignore[arg-type]
    assert clock == [evidence._WAIT]


def test_a_rank_tells_everything_that_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "class/infiniband/mlx0/ports/1/counters"
    counters.mkdir(parents=True)
    logs = tmp_path / "logs" / "1"
    logs.mkdir(parents=True)
    (logs / "g-0-0.40").write_text("".join(f"line {number}\n" for number in range(9)))
    (logs / "g-0-0.41").write_text("x\n")
    (tmp_path / "logs/gpu.json").write_text('{"xid": {"31": 2}}')
    values = {"port_xmit_data": 100, "port_rcv_data": 100, "symbol_error": 3, "link_downed": 1}

    def write(more: int) -> None:
        for name, value in values.items():
            (counters / name).write_text(f"{value + more * (name != 'link_downed')}\n")

    write(0)
    monkeypatch.setattr(evidence.time, "sleep", lambda _seconds: write(5))
    monkeypatch.setattr(evidence, "ask_nccl", lambda: [{"hash": "0x1", "ranks": []}])
    monkeypatch.setattr(evidence, "down", lambda _rails, _root, rdma: ("lo has no carrier",) if rdma else ())
    status, text = evidence.Evidence(tmp_path / "logs", (RAIL,), str(tmp_path)).answer()
    told = json.loads(text)
    assert status == 200
    assert told["rails"] == [
        {
            "interface": "lo",
            "device": "mlx0",
            "address": "10.100.0.1",
            "down": "lo has no carrier",
            "bytes": [20, 20],
            "errors": {"symbol_error": 5},
        }
    ]
    assert told["nccl"] == ["line 6", "line 7", "line 8", "x"]
    assert told["communicators"] == [{"hash": "0x1", "ranks": []}]
    assert told["gpu"] == {"xid": {"31": 2}}
    assert list(told["missing"]) == ["witness"] and "FileNotFoundError" in told["missing"]["witness"]


def test_the_page_collects_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = evidence.Evidence(tmp_path, (), str(tmp_path))
    gate = sidecar.Gate("g", 0, ("g-0",), (), None, False, 9, 0, str(tmp_path))
    page = page_of(monkeypatch, gate, None, None, collector)
    inner: list[tuple[int, str]] = []

    def collect() -> dict[str, Any]:
        inner.append(page("/hang"))
        return {}

    monkeypatch.setattr(collector, "collect", collect)
    assert page("/hang") == (200, "{}")
    assert inner == [(429, "")]
    assert page("/metrics") == (200, "")


def test_rails_of_networks_that_others_made_are_what_the_pod_has(tmp_path: Path) -> None:
    mlx5_vf(tmp_path, address="127.0.0.1")
    (found,) = evidence.completed([Rail("", "lo", "", 0)], str(tmp_path))
    assert (found.device, found.interface, found.address) == ("rocep1s0f0v0", "lo", "127.0.0.1")
    assert found.mtu > 1500
    assert evidence.completed([RAIL], str(tmp_path)) == (RAIL,)
    (absent,) = evidence.completed([Rail("", "absent0", "", 0)], str(tmp_path))
    assert absent == Rail("", "absent0", "", 0)
