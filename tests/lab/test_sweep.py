# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a sweep of six cells on the lab's real Kubernetes; its controller is killed once and interrupted once.

One cell is refused, the image resolves one to the engine of another, one crashes, one has broken output, and two are
healthy.
"""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from labcommand import CHECKOUT, LABCTL, LabCommand
from sitecommand import Site

COVERS = (
    "playbooks/sweep.yml",
    "playbooks/bench.yml",
    "playbooks/compare.yml",
    "roles/bench",
    "plugins/plugin_utils/_bench",
)

SWEEP = CHECKOUT / "tests/lab/fixtures/lab-six.yml"
RESTART = CHECKOUT / "tests/lab/fixtures/lab-restart.yml"
GROUP = "minimax-m2-5"


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    yield Site.deployed(make_lab(), nodes=2)


def journal(cluster: Site, sweep: Path = SWEEP) -> list[dict[str, Any]]:
    path = cluster.lab.results / f"{sweep.stem}.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [int(child) for child in found]


def controller(pid: int) -> int:
    """Return the topmost ansible-playbook process below a command of the lab; its children run the tasks."""
    level = [pid]
    while level:
        for one in level:
            words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"bin/ansible-playbook") for word in words[:2]):
                return one
        level = [child for one in level for child in children(one)]
    raise AssertionError("ansible-playbook does not run")


@contextmanager
def while_it_measures(cluster: Site, sweep: Path, finished: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a sweep; yield its process and log when ``finished`` cells have ended and the next one is being measured."""
    command = [LABCTL, "run", "--", *cluster.lab.playbook("sweep", sweep=str(sweep))]
    log = cluster.lab.state / f"{sweep.stem}-{finished}.log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, cwd=CHECKOUT, env=cluster.lab.environment, stdout=out, stderr=out, start_new_session=True
        )
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline and running.poll() is None:
            ended = sum(r["kind"] == "result" for r in journal(cluster, sweep))
            if ended >= finished and "| Measure the server" in task(log):
                break
            time.sleep(0.5)
        assert running.poll() is None, log.read_text()[-4000:]
        yield running, log


def end_while_it_measures(cluster: Site, finished: int, how: signal.Signals) -> None:
    """Run the sweep until ``finished`` cells have ended and the next one is being measured; then end its controller."""
    with while_it_measures(cluster, SWEEP, finished) as (running, _log):
        if how == signal.SIGINT:
            # a terminal sends Ctrl-C to the whole process group
            os.killpg(running.pid, how)
        else:
            os.kill(controller(running.pid), how)
        running.wait(timeout=60)


def task(log: Path) -> str:
    """Return the heading of the task that started last."""
    return log.read_text().rpartition("TASK [")[2].partition("\n")[0]


def test_six_cells_end_correctly_although_the_controller_is_killed_once_and_interrupted_once(cluster: Site) -> None:
    end_while_it_measures(cluster, 0, signal.SIGINT)
    end_while_it_measures(cluster, 1, signal.SIGKILL)
    output = cluster.play("sweep", sweep=str(SWEEP))
    print(output[output.find("TASK [gb10.cluster.bench : Sweep | Show the winners") :][:1500])

    records = journal(cluster)
    ended = [r for r in records if r["kind"] == "result"]
    assert Counter(r["cell"] for r in ended).most_common(1)[0][1] == 1, "a cell was measured twice"
    failures = [(r["status"], r.get("failure"), r.get("reason")) for r in ended]
    assert Counter(r["status"] for r in ended) == {"ok": 2, "duplicate": 1, "illegal_instruction": 1, "garbage": 1}, (
        failures
    )
    plan = next(r for r in records if r["kind"] == "plan")["cells"]
    assert Counter(c["status"] for c in plan) == {"run": 5, "invalid": 1}
    assert sum(r["kind"] == "start" for r in records) == 5 + 2, "each end costs its own cell and no other"


def test_every_record_names_the_hardware_and_software_that_it_ran_on(cluster: Site) -> None:
    # A duplicate did not start, so it has no server, no NCCL and no transport of its own.
    for record in (r for r in journal(cluster) if r["kind"] == "result" and r["status"] != "duplicate"):
        seen = record["environment"]
        assert seen["sglang"] == "0.5.20"
        assert seen["engine"] and seen["arguments"] and seen["nodes"] == ["spark1", "spark2"]
        assert (seen["networks"], seen["mtu"]) == (["gb10-rail0-vf0", "gb10-rail1-vf0"], 9000)
        assert all("sha256:" in image for image in seen["image_id"])
        assert seen["kernel_and_driver"][0].endswith("no NVIDIA driver")
        assert seen["nccl"][0].startswith("2.28.9")
        assert seen["transport"]["satisfied"] is True
        assert seen["server"]["tp_size" if "tp_size" in seen["server"] else "tensor_parallel_size"] == 2


def test_the_crashed_cell_quotes_its_log_line_and_the_broken_one_its_repeated_token(cluster: Site) -> None:
    ended = {r["status"]: r for r in journal(cluster) if r["kind"] == "result"}
    assert "an illegal instruction was encountered" in ended["illegal_instruction"]["failure"]["line"]
    signs = ended["garbage"]["measurements"][0]["runs"][0]["garbage"]
    assert {sign["kind"] for sign in signs} >= {"single_token"}


def test_the_report_ranks_only_valid_cells_and_its_presets_can_be_served(cluster: Site) -> None:
    page = (cluster.lab.results / "lab-six.html").read_text()
    assert "<svg" in page and "Left out" in page and "<script" not in page
    report = json.loads((cluster.lab.results / "lab-six.json").read_text())
    remarks = report["reports"][0]["left_out"]
    assert len([line for line in remarks if ": ok" not in line]) == 4, remarks
    profile = yaml.safe_load((cluster.lab.results / "profiles/minimax-m2.5.yml").read_text())
    assert {"tuned-n1", "tuned-n4", "tuned-mixed"} <= set(profile["presets"])
    values = {
        "profile": "minimax-m2.5",
        "preset": "tuned-n4",
        "gb10_profile_dirs": [str(cluster.lab.results / "profiles")],
    }
    cluster.play("serve", "--check", **values)


def test_a_second_run_measures_nothing_and_changes_nothing_in_the_journal(cluster: Site) -> None:
    before = (cluster.lab.results / "lab-six.jsonl").read_bytes()
    output = cluster.play("sweep", sweep=str(SWEEP))
    assert "0 left" in output
    assert (cluster.lab.results / "lab-six.jsonl").read_bytes() == before


def test_a_sweep_compared_with_itself_has_no_regression(cluster: Site) -> None:
    path = str(cluster.lab.results / "lab-six.jsonl")
    table = cluster.play("compare", before=path, after=path).partition("Show the table")[2]
    # two cells of two workloads, each by its two rates, first token and time between tokens
    assert table.count(" same") == 2 * 2 * 4
    assert "worse" not in table


def test_after_a_node_restart_the_cell_of_that_moment_is_tried_again(cluster: Site) -> None:
    with while_it_measures(cluster, RESTART, 0) as (running, log):
        cluster.lab("reboot", "spark2")
        assert running.wait(timeout=900) == 0, log.read_text()[-8000:]
    ended = [record for record in journal(cluster, RESTART) if record["kind"] == "result"]
    print([record.get("failure") for record in ended])
    assert [record["status"] for record in ended] == ["infrastructure", "ok"]


def test_the_last_cell_s_group_is_stopped_by_its_profile(cluster: Site) -> None:
    assert len(cluster.pods(GROUP)) == 2
    cluster.play("serve_stop", profile="minimax-m2.5")
    assert cluster.pods(GROUP) == []
