# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve one group on the three hosts of a ring without a switch, from the example inventory as it stands."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from gb10lab.lab import Lab
from labcommand import CHECKOUT, LabCommand, recap
from sitecommand import Site, is_ready, ring_profile

COVERS = (
    "inventory/3x-gb10-ring",
    "playbooks/plan.yml",
    "plugins/plugin_utils/_fabric",
    "plugins/plugin_utils/_serving",
)

NAME = "three-ranks"
PROFILE = ring_profile(NAME, 3)
PROFILE["presets"]["pair"] = {"description": "Two neighbours", "topology": {"nodes": 2, "tp": 2}}
# host -> neighbour -> the RDMA devices of the cable between them
CABLES = {
    "spark1": {"spark2": ["rocep1s0f0v0", "roceP2p1s0f0v0"], "spark3": ["rocep1s0f1v0", "roceP2p1s0f1v0"]},
    "spark2": {"spark3": ["rocep1s0f0v0", "roceP2p1s0f0v0"], "spark1": ["rocep1s0f1v0", "roceP2p1s0f1v0"]},
    "spark3": {"spark1": ["rocep1s0f0v0", "roceP2p1s0f0v0"], "spark2": ["rocep1s0f1v0", "roceP2p1s0f1v0"]},
}


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand], tmp_path_factory: pytest.TempPathFactory) -> Site:
    lab = make_lab("3x-gb10-ring", "lab")
    lab.up(nodes=3, layout="ring", kubernetes=True)
    profiles = tmp_path_factory.mktemp("profiles")
    (profiles / f"{NAME}.yml").write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
    values: dict[str, Any] = {"gb10_profile_dirs": [str(profiles)], "profile": NAME, "preset": "default"}
    return Site(lab, group=NAME, values=values)


def test_a_ring_of_three_is_deployed_and_every_pair_is_proven_on_its_own_cable(site: Site) -> None:
    said = site.play("site")
    verdict = json.loads(next(site.lab.results.glob("**/transport.json")).read_text(encoding="utf-8"))
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)
    pods = {f"spark{rank + 1}": f"{NAME}-{rank}-0" for rank in range(3)}
    pairs = [
        f"{pods[host]} to {pods[peer]} ({', '.join(devices)})"
        for host, cables in CABLES.items()
        for peer, devices in cables.items()
    ]
    told = " ".join(said.split())
    assert not [pair for pair in pairs if not re.search(rf"Cable {re.escape(pair)}: [\d.]+ MB by RDMA", told)], told
    # the gate of every rank agrees
    site.incarnations()


def test_every_rank_has_exactly_the_networks_of_its_cables(site: Site) -> None:
    pods = site.pods()
    assert len(pods) == 3
    for rank, pod in enumerate(pods):
        attached = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert len(attached) == 4
        shown = site.kubectl("exec", pod["metadata"]["name"], "-c", "sglang", "--", "env").splitlines()
        devices = sorted(device for cable in CABLES[f"spark{rank + 1}"].values() for device in cable)
        env = dict(line.split("=", 1) for line in shown if "=" in line)
        assert sorted(env["NCCL_IB_HCA"].removeprefix("=").split(",")) == devices
        assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
        assert (env["NCCL_IB_SUBNET_AWARE_ROUTING"], env["NCCL_IB_MERGE_NICS"]) == ("1", "0")


def test_a_second_run_on_a_ring_of_three_changes_nothing_and_one_at_the_same_time_is_refused(site: Site) -> None:
    before = site.incarnations()
    # This task follows the one that takes the lock.
    point = "Check | Check that the network change can be made"
    with site.lab.reached("site", point, **site.values) as first:
        os.killpg(first.pid, signal.SIGSTOP)
        said = " ".join(site.play("site", check=False).split())
        os.killpg(first.pid, signal.SIGCONT)
    assert "Another run changes this host" in said, said[-4000:]
    assert "playbook fabric, at most until" in said
    assert first.returncode == 0
    counts = recap((site.lab.state / "reached.log").read_text(encoding="utf-8"), "changed")
    assert counts == dict.fromkeys(counts, 0)
    assert site.incarnations() == before


def metric(site: Site, rank: int, name: str) -> list[tuple[str, float]]:
    """Return the labels and the value of every sample of a metric of a rank."""
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:30002/metrics').read().decode())"
    shown = site.kubectl("exec", f"{NAME}-{rank}-0", "-c", "transport", "--", "python3", "-c", script)
    found = re.findall(rf"^gb10_transport_{name}{{(.*)}} (\S+)$", shown, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]


def rising(site: Site, before: list[list[tuple[str, float]]]) -> list[int]:
    """Return on how many rails of each rank the count of link changes is above that of ``before``."""
    now = [metric(site, rank, "link_changes_total") for rank in range(3)]
    return [sum(new > old for new, old in zip(now[rank], before[rank], strict=True)) for rank in range(3)]


def wait_for(is_so: Callable[[], bool], patience: float) -> float:
    """Wait until ``is_so`` returns true; return the seconds that it took."""
    started = time.monotonic()
    while not is_so():
        assert time.monotonic() - started < patience
        time.sleep(2)
    return time.monotonic() - started


def pull(site: Site, cable: str) -> None:
    """Take the link from everything that is connected to both halves of a cable, VFs in pods included."""
    space = Lab(site.lab.state, site.lab.state).name
    for half in "ab":
        shown = subprocess.check_output(["ip", "-n", space, "-j", "link", "show", "master", cable + half], timeout=30)
        for port in json.loads(shown):
            subprocess.run(["ip", "-n", space, "link", "set", port["ifname"], "down"], check=True, timeout=30)


def reason(site: Site, rank: int) -> str:
    """Return the reason of the transport condition of a rank."""
    conditions = site.get("pod", f"{NAME}-{rank}-0")["status"].get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "gb10.cluster/transport"), "")


def test_a_cable_that_is_pulled_while_serving_is_named_by_the_gate_the_metrics_and_discover(site: Site) -> None:
    before = [metric(site, rank, "link_changes_total") for rank in range(3)]
    pull(site, "ring12")
    took = wait_for(lambda: rising(site, before) == [2, 2, 0], 30)
    lost = wait_for(lambda: [reason(site, rank) for rank in (0, 1)] == ["LinkDown"] * 2, 30)
    print(f"\nlink change in the metrics after {took:.0f} s, LinkDown after another {lost:.0f} s")
    assert reason(site, 2) != "LinkDown"
    assert not is_ready(site.pods()[0])
    for rank in (0, 1):
        assert 'reason="LinkDown"' in metric(site, rank, "info")[0][0]
        assert sum(not speed for _rail, speed in metric(site, rank, "link_speed_bits_per_second")) == 2
    # a generation needs every cable
    probe = ("timeout", "20", "python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "16")
    assert site.ask("exec", f"{NAME}-0-0", "-c", "sglang", "--", *probe).returncode
    events = site.get("events")["items"]
    named = {event["involvedObject"]["name"] for event in events if event["reason"] == "TransportLinkDown"}
    assert named >= {f"{NAME}-0-0", f"{NAME}-1-0"}
    said = " ".join(site.play("discover", check=False).split())
    assert "the plan joins spark1 enp1s0f0np0 and spark2 enp1s0f1np1, but spark1 enp1s0f0np0 has no link" in said


def test_two_neighbours_of_the_chain_that_is_left_are_served(site: Site, tmp_path: Path) -> None:
    mine = tmp_path / "chain"
    shutil.copytree(CHECKOUT / "inventory/3x-gb10-ring", mine)
    for path in mine.rglob("*.yml"):
        text = path.read_text(encoding="utf-8").replace("topology: ring", "topology: chain")
        text = re.sub(r"^.*ring12[ab], pf.*\n|gb10_fabric_pfs: {ring12a.*", "", text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")
    chain = Site(LabCommand(site.lab.state, (mine, CHECKOUT / "inventory/lab")), group=NAME, values=site.values)
    said = " ".join(chain.play("plan", "--tags", "plan", check=False).split())
    assert "spark1 and spark2 share no cable" in said
    pair = {"preset": "pair", "serving_plan_nodes": ["spark2", "spark3"]}
    chain.play("serve_stop", instance=NAME)
    assert "by channels evidence, as expected" in chain.play("site", **pair)
    assert len(chain.incarnations()) == 2
    chain.in_head("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--measure", "16")
