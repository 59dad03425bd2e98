# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the sidecar judges from its own files and sysfs, with an API that records its requests."""

import io
import json
import re
import ssl
import threading
import time
import urllib.request
from dataclasses import replace
from email.message import Message
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import evidence, gate, sidecar, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Condition, unproven
from gate_rank import GATE, LATER, LINES, STARTED, Rank


def test_a_head_is_proven_after_a_generation_and_reports_it_once(rank: Rank) -> None:
    assert rank.step() == "NotStarted"
    rank.nccl("1", lines=4)
    assert (rank.step(), rank.asked) == ("NotProven", 1)
    rank.nccl("1")
    assert [rank.step() for _look in range(3)] == ["Proven"] * 3
    assert len(rank.api.conditions) == 3
    # A server that has not connected yet causes no event.
    assert (rank.api.events, rank.asked) == (["Proven"], 1)
    assert 'gb10_transport_proven{instance="g",rank="0"} 1' in rank.watch.text
    assert 'device="mlx0",interface="lo",direction="sent"} 100' in rank.watch.text


def test_a_rank_whose_environment_hides_the_transport_names_the_variable(rank: Rank) -> None:
    rank.nccl("1", lines=1)
    (rank.logs / "environment.json").write_text('{"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^INIT"}')
    assert rank.step() == "NotProven"
    condition = rank.api.conditions[-1]
    assert condition.cause == "blinded"
    assert "The server's environment has NCCL_DEBUG_SUBSYS=^INIT, which hides NCCL's transport" in condition.message
    assert "Remove the variable from the profile, serving_plan_env and the image" in condition.message
    # What NCCL itself proves or names counts, whatever the environment has.
    rank.nccl("2")
    (rank.logs / "environment.json").write_text('{"NCCL_HOSTID": "x"}')
    assert rank.step() == "Proven"
    assert rank.api.conditions[-1].cause == ""


def test_a_proof_is_not_older_than_its_server_if_the_clock_was_set_back(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_before = 1795348800.0 - 3600
    rank.api.started["g-0-0"] = STARTED
    monkeypatch.setattr(sidecar.time, "time", lambda: hour_before)
    rank.step()
    rank.nccl("1")
    assert rank.step() == "Proven"
    assert rank.api.times == ["2026-11-22T11:00:00Z", STARTED]
    pod = rank.api.pod("g-1-0")
    pod["status"]["conditions"][0]["lastTransitionTime"] = rank.api.times[-1]
    assert unproven(pod) == ""


def test_the_metrics_name_the_cause_while_a_server_fails_at_every_start(rank: Rank) -> None:
    rank.nccl("1", "Socket")
    with (rank.logs / "1/g-0-0.40").open("a", encoding="utf-8") as file:
        file.write("g-0-0:40:40 [0] NCCL INFO NET/IB : No device found.\n")
        file.write("g-0-0:40:40 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n")
    assert rank.step() == "WrongTransport"
    assert 'class="tcp",evidence="channels",reason="WrongTransport",cause="no_rdma_device"} 1' in rank.watch.text
    rank.nccl("2", lines=0)
    assert rank.step() == "NotProven"
    assert 'class="unknown",evidence="none",reason="NotProven",cause="no_rdma_device"} 1' in rank.watch.text
    assert "gb10_rdma_mode=privileged" in rank.api.conditions[-1].message
    rank.nccl("2")
    assert rank.step() == "Proven"
    assert 'reason="Proven",cause=""} 1' in rank.watch.text
    rank.nccl("3", lines=0)
    assert rank.step() == "NotProven"
    assert 'reason="NotProven",cause=""} 1' in rank.watch.text


def test_files_that_cannot_be_read_any_more_revoke_the_proof(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.nccl("1")
    assert rank.step() == "Proven"
    with monkeypatch.context() as broken:

        def refuse(_files: NcclFiles) -> None:
            raise PermissionError(13, "Permission denied", "1")

        broken.setattr(NcclFiles, "look", refuse)
        # A server that starts again deletes its files, so one look proves nothing.
        assert rank.step() == "Proven"
        assert rank.step(20) == "NotProven"
        assert "NCCL's files can't be read: [Errno 13] Permission denied" in rank.api.conditions[-1].message
    assert rank.step() == "Proven"
    assert rank.api.events == ["Proven", "NotProven", "Proven"]


def test_files_that_become_empty_or_links_revoke_the_proof(rank: Rank) -> None:
    rank.nccl("1")
    assert rank.step() == "Proven"
    (rank.logs / "1" / "g-0-0.40").write_text("")
    rank.step()
    assert rank.step(20) == "EvidenceChanged"
    (rank.logs / "1" / "g-0-0.40").unlink()
    (rank.logs / "1" / "g-0-0.40").symlink_to("/etc/hostname")
    assert rank.step() == "EvidenceChanged"
    # The same files again prove nothing: only a start makes new evidence.
    (rank.logs / "1" / "g-0-0.40").unlink()
    rank.nccl("1")
    assert rank.step() == "EvidenceChanged"
    rank.nccl("2")
    assert rank.step() == "Proven"


def test_a_new_communicator_on_tcp_revokes_the_proof(rank: Rank) -> None:
    rank.nccl("1")
    assert rank.step() == "Proven"
    with (rank.logs / "1" / "g-0-0.40").open("a") as stream:
        stream.write("".join(f"g-0-0:40:41 [0] NCCL INFO {line.format(net='Socket')}\n" for line in LINES[1:]))
    assert rank.step() == "WrongTransport"
    assert "Socket" in rank.api.conditions[-1].message
    assert rank.api.events == ["Proven", "WrongTransport"]


def test_a_proof_that_is_lost_without_a_restart_causes_an_event(rank: Rank) -> None:
    rank.nccl("1")
    rank.step()
    rank.nccl("1", lines=2)
    assert rank.step() == "Proven"
    assert rank.step(20) == "EvidenceChanged"
    assert rank.api.events == ["Proven", "EvidenceChanged"]


def test_a_start_discards_the_proof_of_the_start_before(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(sidecar.time, "time", lambda: clock[0])
    rank.nccl("1")
    rank.step()
    clock[0] += 60
    rank.start("2")
    assert rank.step() == "NotProven"
    clock[0] += 60
    rank.nccl("2")
    assert rank.step() == "Proven"
    # The head compares this time with the start of the server.
    assert rank.api.times == ["1970-01-01T00:16:40Z", "1970-01-01T00:17:40Z", "1970-01-01T00:18:40Z"]
    # A start that has not connected yet is no event.
    assert rank.api.events == ["Proven", "Proven"]


def test_a_start_that_is_proven_between_two_steps_has_a_new_time(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(sidecar.time, "time", lambda: clock[0])
    rank.nccl("1")
    rank.step()
    clock[0] += 60
    rank.step()
    assert 'gb10_transport_verdict_age_seconds{instance="g",rank="0"} 60.0\n' in rank.watch.text
    rank.nccl("2")
    assert rank.step() == "Proven"
    assert rank.api.times[-1] == "1970-01-01T00:17:40Z"


def test_a_condition_that_the_api_may_have_lost_is_written_again(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(sidecar.time, "time", lambda: clock[0])
    rank.nccl("1")
    rank.step()
    assert capsys.readouterr().out.count("transport: Proven: ") == 1
    # The node's clock is set back meanwhile.
    clock[0] -= 86400
    for _minute in range(9):
        clock[0] += 60
        rank.step(60)
    assert 'gb10_transport_verdict_age_seconds{instance="g",rank="0"} 0.0\n' in rank.watch.text
    assert "transport: Proven: " not in capsys.readouterr().out
    assert [condition.reason for condition in rank.api.conditions] == ["Proven"] * 2
    assert rank.api.times == ["1970-01-01T00:16:40Z"] * 2
    assert rank.api.events == ["Proven"]


def test_the_head_is_unready_while_another_rank_is_unproven_or_a_gid_is_missing(rank: Rank) -> None:
    rank.nccl("1")
    assert rank.step() == "Proven"
    rank.api.proven = "False"
    assert rank.step() == "OtherRanks"
    assert rank.api.conditions[-1].message.endswith("g-1-0: TCP")
    rank.api.proven = "True"
    assert rank.step() == "Proven"
    (rank.port / "gids/3").unlink()
    assert rank.step(20) == "GidMissing"
    rank.write("gids/3", "0000:0000:0000:0000:0000:ffff:0a64:0001")
    assert rank.step(20) == "Proven"


def test_a_pulled_cable_is_announced_and_the_head_comes_back_after_a_generation(rank: Rank) -> None:
    rank.write("state", "4: ACTIVE")
    rank.nccl("1")
    assert rank.step() == "Proven"
    rank.write("state", "1: DOWN")
    assert (rank.step(), rank.asked) == ("LinkDown", 0)
    assert rank.api.conditions[-1].message.startswith("mlx0 has port state DOWN. ")
    assert 'reason="LinkDown"' in rank.watch.text
    rank.write("state", "4: ACTIVE")
    assert (rank.step(), rank.asked) == ("NotProven", 1)
    rank.write("counters/port_xmit_data", "2500")
    assert rank.step() == "Proven"
    assert rank.api.events == ["Proven", "LinkDown", "Proven"]


def test_an_interface_without_carrier_has_no_link(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "read_link", lambda *_words: {"carrier_changes": 3, "speed": 10000})
    planned = [*GATE["rails"], {"device": "mlx1", "interface": "absent0", "address": "10.101.0.1", "mtu": 9000}]
    gate = sidecar.Gate.parse(json.dumps(GATE | {"sysfs_root": str(rank.sysfs), "rails": planned}))
    rank.watch = sidecar.Watch(gate, NcclFiles(rank.logs), rank.api)  # type: ignore[arg-type]
    rank.nccl("1")
    assert rank.step() == "LinkDown"
    assert rank.api.conditions[-1].message.startswith("absent0 has no carrier. ")
    assert re.search(r'link_speed_bits_per_second{[^}]*interface="lo"} 10000000000\n', rank.watch.text)
    assert re.search(r'link_speed_bits_per_second{[^}]*interface="absent0"} 0\n', rank.watch.text)


def test_a_link_that_goes_up_and_down_all_the_time_causes_few_events(rank: Rank) -> None:
    rank.nccl("1")
    for turn in range(50):
        rank.write("state", "1: DOWN" if turn % 2 else "4: ACTIVE")
        rank.write("counters/port_xmit_data", str(1000 * turn))
        assert rank.step() == ("LinkDown" if turn % 2 else "Proven")
    assert len(rank.api.events) == 10
    assert len(rank.api.conditions) == 50
    rank.write("state", "4: ACTIVE")
    rank.write("counters/port_xmit_data", "50000")
    # The first event was at 3 s, so at 603 s there is room for another one.
    rank.step(453)
    assert len(rank.api.events) == 11


def test_a_head_that_never_heard_of_the_other_ranks_is_not_proven(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> None:
        raise HTTPError("url", 500, "no answer", Message(), None)

    monkeypatch.setattr(rank.api, "pod", refuse)
    # A sidecar that starts beside a server that serves says nothing before it has an answer.
    rank.nccl("1")
    with pytest.raises(HTTPError):
        rank.turn()
    assert (rank.api.conditions, rank.watch.unsaid) == ([], False)
    assert 'gb10_transport_proven{instance="g",rank="0"} 0' in rank.watch.text
    # One that has said something goes on.
    rank.start("2")
    with pytest.raises(HTTPError):
        rank.turn()
    rank.nccl("2")
    with pytest.raises(HTTPError):
        rank.turn()
    assert [each.reason for each in rank.api.conditions] == ["NotProven", "OtherRanks"]
    assert rank.api.conditions[-1].message.endswith("g-1-0: the API server has not answered yet")


def test_what_is_sent_to_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(ssl, "create_default_context", lambda **_options: None)
    (tmp_path / "token").write_text("t0ken\n")
    sent: list[Any] = []

    def answer(_opener: Any, request: Any, **_options: Any) -> Any:
        sent.append((request.get_method(), request.full_url, dict(request.headers), json.loads(request.data or b"{}")))
        answered = io.BytesIO(b'{"metadata": {}}')
        answered.headers = {"Date": "Sun, 22 Nov 2026 12:00:00 GMT"}  # type: ignore[attr-defined]
        return answered

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", answer)
    pods = watch.PodApi(tmp_path, "ns", "g-0-0", "uid")
    condition = Condition(False, "WrongTransport", "x" * 9000)
    assert pods.pod("g-1-0") == {"metadata": {}}
    pods.set_condition(condition, LATER)
    pods.add_event(condition)
    base = "https://[fd00::1]:443/api/v1/namespaces/ns"
    assert [(method, url) for method, url, _headers, _body in sent] == [
        ("GET", f"{base}/pods/g-1-0"),
        ("PATCH", f"{base}/pods/g-0-0/status"),
        ("POST", f"{base}/events"),
    ]
    assert sent[1][2]["Content-type"] == "application/strategic-merge-patch+json"
    (written,) = sent[1][3]["status"]["conditions"]
    assert (written["type"], written["status"], len(written["message"])) == ("gb10.cluster/transport", "False", 8000)
    event = sent[2][3]
    assert (event["type"], event["reason"], len(event["message"])) == ("Warning", "TransportWrongTransport", 1000)


def test_a_generation_is_not_started_while_one_runs_or_a_moment_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_PROBE", "-c")
    started: list[int] = []

    class Process:
        ended: int | None = None

        def __init__(self, *_words: Any, **_options: Any) -> None:
            started.append(1)

        def poll(self) -> int | None:
            return self.ended

    monkeypatch.setattr(gate.subprocess, "Popen", Process)
    prober = gate.Prober(9)
    for now in (0, 3, 12):
        prober.run(now)
    assert len(started) == 1
    Process.ended = 1
    for now, number in ((15, 2), (24.5, 2), (25, 3)):
        prober.run(now)
        assert len(started) == number


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('sglang:generation_tokens_total{a="b"} 5.0\nsglang:generation_tokens_total{a="c"} 7\nother 9\n', 12.0),
        ("sglang:generation_tokens_total 0\n", 0.0),
        ("other 9\n", None),
        *((f"sglang:generation_tokens_total {value}\n", None) for value in ("NaN", "+Inf", "many", "")),
    ],
)
def test_the_tokens_of_all_lines_are_added(text: str, tokens: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *_words, **_more: io.BytesIO(text.encode()))
    assert gate.tokens(9) == tokens


def other_rank(rank: Rank, number: int, pods: tuple[str, ...] = ("g-0-0", "g-1-0")) -> sidecar.Watch:
    gate = replace(rank.watch.gate, rank=number, pods=pods)
    rank.watch = sidecar.Watch(gate, NcclFiles(rank.logs), rank.api)  # type: ignore[arg-type]
    return rank.watch


def test_only_the_head_asks_the_other_ranks_and_its_server(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def pod(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"metadata": {}}

    monkeypatch.setattr(sidecar.gate, "tokens", lambda port: asked.append(f"port {port}"))
    monkeypatch.setattr(rank.api, "pod", pod)
    rank.nccl("1", lines=4)
    rank.step()
    assert (rank.asked, asked) == (1, ["g-1-0", "port 9"])
    asked.clear()
    other_rank(rank, 1)
    assert rank.step() == "NotProven"
    assert (rank.asked, asked) == (1, [])


@pytest.mark.parametrize("error", [OSError("reset"), IncompleteRead(b""), ValueError("no JSON")])
def test_every_rank_is_asked_although_one_of_them_fails(
    error: Exception, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    first = threading.Event()

    def pod(name: str) -> dict[str, Any]:
        asked.append(name)
        if name == "g-2-0":
            first.set()
            raise error
        first.wait(5)
        time.sleep(0.01)
        return {"metadata": {"deletionTimestamp": "x"}}

    names = tuple(f"g-{number}-0" for number in range(30))
    watch = other_rank(rank, 0, names)
    monkeypatch.setattr(rank.api, "pod", pod)
    with pytest.raises(type(error)):
        watch.ask(0)
    assert sorted(asked) == sorted(names[1:])
    assert set(watch._others.values()) == {"it is being deleted", sidecar.UNANSWERED}


def test_a_head_that_has_just_started_says_what_another_rank_lacks(rank: Rank) -> None:
    rank.watch.publish(0)
    assert rank.api.conditions == []
    rank.nccl("1")
    rank.api.proven = "False"
    assert rank.step() == "OtherRanks"


def test_very_long_files_are_judged_rarely_and_a_start_at_once(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr(sidecar.time, "monotonic", lambda: float(next(seconds)))
    rank.nccl("1", lines=4)
    assert rank.step() == "NotProven"
    rank.nccl("1")
    # A judgement of one second, at 3 s.
    assert rank.step(19.5) == "NotProven"
    assert rank.step(0.5) == "Proven"
    rank.nccl("2", "Socket")
    assert rank.step() == "WrongTransport"


def test_gids_are_read_every_15_seconds_also_without_counters(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.evidence, "SCRIPT", "exit 3")
    rank.nccl("1")
    assert rank.step() == "Proven"
    (rank.port / "gids/3").unlink()
    assert rank.step(14.5) == "Proven"
    assert rank.step(0.5) == "GidMissing"


def test_two_rails_are_read_and_gids_of_another_kind_or_device_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(number: int) -> str:
        return f"0000:0000:0000:0000:0000:ffff:0a64:{number:04x}"

    gids = {
        "mlx0": [("IB/RoCE v1", address(1)), ("RoCE v2", address(1))],
        "mlx1": [("RoCE v2", "fe80:" * 7 + "0001"), ("RoCE v2", address(1)), ("IB/RoCE v1", address(2))],
        "mlx2": [("RoCE v2", address(4)), ("RoCE v2", address(3))],
    }
    for device, listed in gids.items():
        port = tmp_path / "class/infiniband" / device / "ports/1"
        for place in ("gids", "gid_attrs/types"):
            (port / place).mkdir(parents=True)
        (port / "state").write_text("1: DOWN\n" if device == "mlx2" else "4: ACTIVE\n")
        for index, (kind, gid) in enumerate(listed):
            (port / "gids" / str(index)).write_text(gid)
            (port / "gid_attrs/types" / str(index)).write_text(kind)
    planned = [evidence.Rail(f"mlx{index}", f"net{index}", f"10.100.0.{index + 1}", 9000) for index in range(3)]
    values = {"carrier": {"net0": 1, "net1": 0, "net2": 1}, "mtu": {"net0": 9000, "net2": 1500}, "speed": {"net0": 5}}
    monkeypatch.setattr(evidence, "read_int", lambda path: values[path.name].get(path.parent.name))
    assert evidence.gids_and_mtus(planned, str(tmp_path)) == (
        {"10.100.0.1", "10.100.0.3"},
        {"net0": 9000, "net2": 1500},
    )
    carrier, state = "net1 has no carrier", "mlx2 has port state DOWN"
    assert evidence.down(planned, str(tmp_path), True) == (carrier, state)
    assert evidence.down(planned, str(tmp_path), False) == (carrier,)
    counted = {"mlx0": {"xmit_bytes": 5}, "mlx1": {"rcv_bytes": 9}, "mlx2": {"xmit_bytes": 7}}
    assert evidence.sent(planned, counted) == 12
    assert evidence.sent(planned, {"mlx1": {"rcv_bytes": 9}}) is None
    monkeypatch.setattr(evidence, "read_link", lambda *_words: {"carrier_changes": 3, "speed": 10000})
    assert [evidence.link(f"net{index}")["speed"] for index in range(2)] == [10000, None]


@pytest.mark.parametrize("error", [OSError("refused"), IncompleteRead(b""), ValueError("not a number")])
def test_a_server_without_readable_metrics_has_no_tokens(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_words: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    rank.nccl("1")
    assert rank.step() == "Proven"
