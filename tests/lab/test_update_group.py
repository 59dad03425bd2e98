# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook update on two Kubernetes nodes that serve a group, which is proved after each node or once.

A controller is lost during a proof; a proof fails, because the RDMA devices count no bytes with the new kernel.

test_update.py tests what update does on hosts without Kubernetes. Kernels and GRUB are simulated in both.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from labcommand import LabCommand
from sitecommand import Site
from updatehosts import HOST, KERNEL, NODES, publish_kernel, running, state, words

COVERS = ("playbooks/update.yml", "playbooks/group_stop.yml", "playbooks/group_start.yml", "roles/update")

MARK = "gb10.cluster/upgrade"


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    two = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}}
    made = Site.deployed(make_lab(), nodes=2, **two)
    for node in NODES:
        made.lab.shell(node, HOST)
    made.play("serve")
    return made


def nodes(site: Site) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["name"]: node for node in site.get("nodes")["items"]}


def changing(site: Site) -> list[str]:
    """Return the nodes that take no pods, and the nodes and the namespace that are marked as being changed."""
    found = [name for name, node in nodes(site).items() if node["spec"].get("unschedulable")]
    every = [*nodes(site).values(), site.get("namespace", site.namespace)]
    return found + [one["metadata"]["name"] for one in every if MARK in (one["metadata"].get("annotations") or {})]


PROOF = "Serve | Require right answers"


def silence(site: Site, number: int, *nodes: str) -> str:
    """Publish a kernel with which the RDMA devices of these nodes count none of the bytes that NCCL sends."""
    kernel = publish_kernel(site, number)
    for node in nodes:
        site.lab.shell(node, f"echo {kernel} > /boot/silent")
    return kernel


def serves(site: Site, *phases: str) -> bool:
    """Return whether all ranks are ready, the nodes take pods, and the updates of both nodes have ended so."""
    states = [state(site, node) for node in NODES]
    ended = [each.get("phase", "") for each in states] == list(phases) and not any(each.get("open") for each in states)
    return ended and len(site.incarnations()) == len(NODES) and changing(site) == []


def test_a_node_with_which_the_proof_fails_boots_the_kernel_from_before_and_the_group_serves(site: Site) -> None:
    kernel = silence(site, 1015, "spark1")
    said = words(site.play("update", "--check"))
    assert f"1. stop group {site.group}, which has ranks on spark1, spark2, after it has passed its proof 2. " in said
    proved = f"start group {site.group}, and prove its transport and its answers; make {kernel} the default"
    assert said.count(proved) == len(NODES), said[-3000:]
    said = words(site.play("update", check=False))
    assert "spark1: failed after the update (" in said, said[-3000:]
    assert "moved 0 bytes" in said, said[-6000:]
    assert "The group serves again, and is proved. [update.host.failed]" in said, said[-3000:]
    assert running(site) == [KERNEL.format(1014)] * 2
    assert serves(site, "returned", "")


def test_a_group_that_is_proved_once_steps_back_on_all_nodes_and_settles_on_all(site: Site) -> None:
    kernel = silence(site, 1016, *NODES)
    said = words(site.play("update", check=False, update_proof="group"))
    assert "spark1, spark2: failed after the update (" in said, said[-3000:]
    assert running(site) == [KERNEL.format(1014)] * 2
    assert serves(site, "returned", "returned")
    for node in NODES:
        site.lab.shell(node, "rm /boot/silent")
    said = words(site.play("update", update_proof="group", update_retry=True))
    assert running(site) == [kernel] * 2, said[-3000:]
    assert said.count(PROOF) == 1
    assert serves(site, "settled", "settled")


def test_a_controller_that_is_lost_during_a_proof_leaves_the_kernel_from_before_as_the_default(site: Site) -> None:
    kernel = publish_kernel(site, 1017)
    site.killed("update", re.escape(PROOF))
    assert running(site) == [kernel, KERNEL.format(1016)]
    assert [state(site, "spark1")[name] for name in ("phase", "open")] == ["trial", True]
    assert "1016" in site.lab.shell("spark1", "cat /boot/grub/saved")
    assert changing(site) == [site.namespace]


def test_the_next_run_goes_on_and_proves_the_group_after_each_node(site: Site) -> None:
    said = words(site.play("update"))
    assert "spark1: go on with the update of" in said, said[-3000:]
    assert said.count(PROOF) == len(NODES)
    assert running(site) == [KERNEL.format(1017)] * 2
    assert serves(site, "settled", "settled")
    (verdict,) = site.lab.results.glob("**/transport.json")
    assert json.loads(verdict.read_text(encoding="utf-8"))["satisfied"] is True
