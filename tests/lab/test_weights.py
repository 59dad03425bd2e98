# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a model on four nodes: one download, three copies over the fabric, and everything that can go wrong meanwhile.

One lab, in the order of this file.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import counting_hub
import pytest
from labcommand import LABCTL, LabCommand, changed
from sitecommand import Site

COVERS = ("playbooks/models.yml", "roles/models", "plugins/module_utils/_models", "plugins/plugin_utils/_models")

PORT = 8099
HUB = f"http://10.99.0.1:{PORT}"
NODES = {f"spark{number}": f"10.99.0.1{number}" for number in (1, 2, 3, 4)}
REPO = "org/weights"
MODEL = "/srv/models/org--weights"
PROCESS = "/run/gb10-models.pid"
WEIGHTS = counting_hub.COUNT * counting_hub.SIZE
TOTAL = WEIGHTS + len(b'{"model_type": "simulated"}\n')
# Ansible's modules, listings and acknowledgements on the management network
OVERHEAD = 60_000_000
FETCH = {"models_state": "fetched", "models_repo": REPO, "models_url": HUB}
COUNTERS = """
for name in $(ls /sys/class/net); do echo $name $(cat /sys/class/net/$name/statistics/rx_bytes); done
"""
# The VFs of a host send at 40 Mb/s each, so that a copy takes long enough to be interrupted.
SLOW = """
for vf in $(ls /sys/class/net | grep -E '^en.*v[0-9]+$'); do
  tc qdisc replace dev $vf root tbf rate 40mbit burst 256k latency 400ms
done
"""
FAST = SLOW.replace("replace", "delete").replace("root tbf rate 40mbit burst 256k latency 400ms", "root")


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Iterator[Site]:
    made = Site(make_lab("4x-gb10-switch", "lab"))
    made.lab.up(nodes=4)
    made.play("fabric")
    program = Path(counting_hub.__file__)
    hub = subprocess.Popen(
        [LABCTL, "run", "--", sys.executable, program, str(PORT)], env=made.lab.environment, start_new_session=True
    )
    try:
        end = time.monotonic() + 60
        while made.lab.run("curl", "--fail", "--silent", f"{HUB}/count").returncode:
            assert time.monotonic() < end and hub.poll() is None
            time.sleep(1)
        yield made
    finally:
        os.killpg(hub.pid, signal.SIGTERM)
        hub.wait(10)


def downloaded(site: Site) -> dict[str, int]:
    """Return the bytes that the hub sent, by the address of the host."""
    return dict(json.loads(site.lab.run("curl", "--fail", "--silent", f"{HUB}/count").stdout))


def received(site: Site, node: str) -> dict[str, int]:
    """Return the bytes that arrived on each interface of a host."""
    lines = site.lab.shell(node, COUNTERS).splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def digests(site: Site, node: str) -> str:
    return site.lab.shell(node, f"cd {MODEL} && sha256sum *.bin config.json")


def listeners(site: Site, node: str) -> list[str]:
    """Return the addresses on which a transfer listens."""
    return [line.split()[3] for line in site.lab.shell(node, "ss -Htln").splitlines() if ":7420" in line]


def closed(site: Site) -> bool:
    """Return whether no node listens or has a process of a transfer."""
    left = f"ls -l /proc/[0-9]*/fd 2>/dev/null | grep -F {PROCESS}"
    return not any(
        listeners(site, node) or site.lab("exec", node, "--", "sh", "-c", left, check=False) for node in NODES
    )


def there(site: Site, node: str) -> int:
    """Return how many bytes of the model are on a host, in whole and in partial files."""
    sizes = f"(stat --format=%s {MODEL}/*.bin {MODEL}/*.part 2>/dev/null || true)"
    return int(site.lab.shell(node, f"{sizes} | awk '{{n += $1}} END {{print n + 0}}'"))


def until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_check_mode_tells_who_would_download_and_who_would_copy(site: Site) -> None:
    said = site.play("models", "--check", **FETCH)
    assert "spark1: downloads 402.7 MB from the hub" in said
    assert "spark4: copies 402.7 MB over the fabric from spark1, spark2, spark3" in said
    assert downloaded(site) == {}
    assert all(site.lab("exec", node, "--", "ls", MODEL, check=False) == "" for node in NODES)


def test_one_node_downloads_and_three_copy_over_the_fabric(site: Site) -> None:
    before = {node: received(site, node) for node in NODES}
    seen: dict[str, set[str]] = {node: set() for node in NODES}
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for node, found in seen.items():
                found.update(listeners(site, node))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        said = site.play("models", **FETCH)
    finally:
        over.set()
        looking.join()
    assert downloaded(site) == {NODES["spark1"]: TOTAL}, "each byte of the model once, to one node"
    right = {name: hashlib.sha256(data).hexdigest() for name, data in counting_hub.contents().items()}
    for node in NODES:
        assert dict(reversed(line.split()) for line in digests(site, node).splitlines()) == right
    for node in NODES:
        after = received(site, node)
        gained = {name: after[name] - before[node].get(name, 0) for name in after}
        fabric = sum(count for name, count in gained.items() if name.startswith(("enp1s0f", "enP2p1s0f")))
        print(node, {name: count for name, count in gained.items() if count > 1_000_000})
        if node == "spark1":
            assert gained["enP7s7"] > TOTAL
        else:
            assert fabric > TOTAL and gained["enP7s7"] < OVERHEAD
        number = int(node[-1])
        assert seen[node] <= {f"10.10{rail}.{index}.{number}:7420" for rail in (0, 1) for index in (0, 1)}
    assert seen["spark1"]
    assert "MB/s" in said and "downloaded" in said and "copied" in said
    assert closed(site)
    assert changed(site.play("models", **FETCH)) == 0
    assert sum(downloaded(site).values()) == TOTAL


def test_a_source_is_killed_midway_and_another_one_goes_on(site: Site) -> None:
    for node in ("spark3", "spark4"):
        site.lab.shell(node, f"rm -r {MODEL}")
    for node in ("spark1", "spark2"):
        site.lab.shell(node, SLOW)
    output: list[str] = []
    playing = threading.Thread(target=lambda: output.append(site.play("models", **FETCH)))
    playing.start()
    until(lambda: 0 < there(site, "spark3") < WEIGHTS, 120)
    site.lab.shell("spark1", f"kill -9 $(cat {PROCESS})")
    copied = there(site, "spark3")
    playing.join(300)
    for node in ("spark1", "spark2"):
        site.lab.shell(node, FAST)
    print(f"spark3 had received {copied} of {WEIGHTS}")
    assert 0 < copied < WEIGHTS, "the source was killed too late"
    assert output, "the playbook failed"
    assert len({digests(site, node) for node in NODES}) == 1
    assert sum(downloaded(site).values()) == TOTAL
    assert closed(site)


def test_everything_closes_by_itself_when_the_controller_is_killed(site: Site) -> None:
    for node in NODES:
        site.lab.shell(node, f"rm -r {MODEL}")
    site.lab.killed("models", "Copy the files from the other nodes", **FETCH)
    assert not closed(site)
    until(lambda: closed(site), 150)


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(site: Site) -> None:
    for node in NODES:
        site.lab.shell(node, f"rm -rf {MODEL}")
    site.lab("fault", "spark3", "small-disk")
    before = downloaded(site)
    said = " ".join(site.play("models", **FETCH, models_reserve_gb=2.9, check=False).split())
    assert "error: spark3: /srv/models = " in said and "[models.disk]" in said
    assert "2.9 GB must stay free" in said and "Free " in said
    assert "error: spark1" not in said
    assert downloaded(site) == before
    assert all(site.lab("exec", node, "--", "ls", MODEL, check=False) == "" for node in NODES)
    assert closed(site)


def test_sharing_can_be_turned_off(site: Site) -> None:
    before = downloaded(site)
    site.play("models", **FETCH, gb10_model_share=False)
    after = downloaded(site)
    assert {host: count - before.get(host, 0) for host, count in after.items()} == dict.fromkeys(NODES.values(), TOTAL)
    assert closed(site)
