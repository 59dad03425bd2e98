# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test one GPU node in this order: no nvidia runtime, thresholds of its disk, a stuck group, a full disk."""

import json
from collections.abc import Callable

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import eviction_threshold
from labcommand import LabCommand
from sitecommand import Site

COVERS = (
    "playbooks/serve.yml",
    "plugins/modules/node_room_info.py",
    "plugins/modules/pods_wait.py",
    "plugins/action/pods_wait.py",
    "roles/sglang",
    "plugins/plugin_utils/_proof",
    "plugins/plugin_utils/_controller",
)

ONE = {"serving_plan_overrides": {"topology": {"nodes": 1, "tp": 1}}}
RUNTIME = "/usr/bin/nvidia-container-runtime"


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    lab = make_lab()
    lab.up(1, kubernetes=True)
    lab("fault", "spark1", "small-disk")
    made = Site(lab)
    made.play("fabric")
    return made


def test_a_missing_nvidia_runtime_is_named(site: Site) -> None:
    """K3s looks for the runtime when it starts, so it must be there before."""
    site.lab.shell("spark1", f"mv {RUNTIME} {RUNTIME}.away")
    output = " ".join(site.play("kubernetes", check=False, device_plugins_wait_timeout=40).split())
    assert "spark1" in output
    assert "The container runtime of the node knows no runtime nvidia" in output
    assert "apt-get install nvidia-container-toolkit" in output
    assert "apiVersion" not in output
    site.lab.shell("spark1", f"mv {RUNTIME}.away {RUNTIME}; systemctl restart k3s-agent")
    site.play("kubernetes")


def test_the_kubelet_runs_with_the_thresholds_of_its_disk(site: Site) -> None:
    disk = int(site.lab.shell("spark1", "stat -f -c '%b * %S' /var/lib/rancher | xargs expr"))
    seen = json.loads(site.kubectl("get", "--raw", "/api/v1/nodes/spark1/proxy/configz"))["kubeletconfig"]
    # 3 GB is so small that 5 % is the limit, which is below the least of 4 GiB.
    threshold = f"{eviction_threshold(disk) // 2**20}Mi"
    for kind in ("evictionHard", "evictionMinimumReclaim"):
        assert {name: seen[kind][name] for name in ("imagefs.available", "nodefs.available")} == {
            "imagefs.available": threshold,
            "nodefs.available": threshold,
        }
    assert (seen["imageGCHighThresholdPercent"], seen["imageGCLowThresholdPercent"]) == (90, 88)


def test_a_stuck_group_of_one_node_is_restarted_once(site: Site) -> None:
    site.play("serve", **ONE, sglang_stuck_after=20, sglang_first_step_timeout=20)
    (before,) = site.pods()
    conditions = {one["type"]: one for one in before["status"]["conditions"]}
    assert conditions["gb10.cluster/memory"]["reason"] in ("MemoryEnough", "MemoryLow")
    assert "gb10.cluster/transport" not in conditions
    old = site.incarnations()
    # The bracket keeps pkill from finding its own command line.
    site.lab("exec", "spark1", "--", "pkill", "-STOP", "-f", "[s]glang.launch_server")
    print(f"ready again after {site.wait_ready(old, 1):.0f} s")
    said = site.kubectl("logs", f"deploy/{site.group}-supervisor")
    assert said.count("restarting the group: the head has been stuck for") == 1
    assert said.count("why the group hung: rank 0: its process front_door.py is stopped (state T)") == 1
    site.play("serve_stop", instance=site.group)


def test_a_node_under_disk_pressure_is_refused_with_the_reason(site: Site) -> None:
    site.lab.shell("spark1", "head -c 3G /dev/zero > /var/lib/rancher/models/fill 2>/dev/null || true")
    site.kubectl("wait", "--for=condition=DiskPressure", "node/spark1", "--timeout=120s")
    said = " ".join(site.play("serve", check=False, **ONE).split())
    assert "serving.node.disk" in said
    assert "the disk of the node is too full" in said
    assert "Free space on it" in said
