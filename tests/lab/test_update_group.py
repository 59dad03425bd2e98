# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook update on two Kubernetes nodes that serve a group: a controller that is lost, a good end, a step back.

test_update.py tests what update does on hosts without Kubernetes. Kernels and GRUB are simulated in both.
"""

from __future__ import annotations

import json
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


def test_a_controller_that_is_lost_leaves_a_stopped_group_and_a_drained_node(site: Site) -> None:
    kernel = publish_kernel(site, 1015)
    said = words(site.play("update", "--check"))
    assert f"1. stop group {site.group}, which has ranks on spark1, spark2 2. spark1: " in said, said[-3000:]
    assert f"4. start group {site.group}, and prove its transport and its answers" in said
    before = site.incarnations()
    site.killed("update", r"Boot \| Reboot the host")
    assert site.pods() == []
    assert changing(site) == ["spark1", "spark1", site.namespace]
    assert running(site)[1] == KERNEL.format(1014)
    said = words(site.play("update"))
    assert "1. spark1: go on with the update of" in said, said[-3000:]
    assert running(site) == [kernel] * 2
    assert changing(site) == []
    # the run has stopped the group, and started and proven it at its end
    assert before.isdisjoint(site.incarnations())
    (verdict,) = site.lab.results.glob("**/transport.json")
    assert json.loads(verdict.read_text(encoding="utf-8"))["satisfied"] is True
    assert "Answers | Ask the group questions with known answers" in said


def test_a_node_that_steps_back_gets_pods_again_and_serve_brings_the_group_back(site: Site) -> None:
    kernel = publish_kernel(site, 1016)
    site.lab.shell("spark2", f"echo {kernel} > /boot/faulty")
    said = words(site.play("update", check=False))
    assert "spark2 failed after its update" in said, said[-3000:]
    assert running(site) == [kernel, KERNEL.format(1015)]
    assert [state(site, node)["phase"] for node in NODES] == ["settled", "returned"]
    assert changing(site) == [site.namespace]
    site.play("serve")
    assert len(site.incarnations()) == len(NODES)
    assert "by channels evidence, as expected" in words(site.play("verify"))
    assert "Nothing to update." in words(site.play("update"))
    assert changing(site) == []
