# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy the RDMA modes with device plugins by the same play; check their Pod Security level, pods and transport.

One lab of two nodes runs one mode after another; in each mode the models are in a directory of the nodes. Most other
tests of the lab run in the mode privileged.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site, is_ready

COVERS = ("roles/device_plugins", "roles/multus", "plugins/plugin_utils/_serving", "plugins/filter/sriov_resources.yml")

MODELS = ("google--gemma-4-31B-it", "google--gemma-4-31B-it-assistant")
LEVELS = {"ipc_lock": "privileged", "restricted": "restricted"}
# 1 << 14, IPC_LOCK in /proc/PID/status
IPC_LOCK = 0x4000
PCI = """
mkdir -p /run/gb10-lab/pci
for function in /run/gb10-lab/sys/devices/pci*/*; do ln -sfn $function /run/gb10-lab/pci/; done
mountpoint -q /sys/bus/pci/devices || mount --bind /run/gb10-lab/pci /sys/bus/pci/devices
"""
# A safetensors file without tensors: only the length of its header and the header.
SHARD = "model.safetensors"
WEIGHTS = r"printf '\2\0\0\0\0\0\0\0{}' >"
LOOK = """
echo uid $(id -u); sed -n 's/^CapEff:/caps/p;s/^Seccomp:/seccomp/p;s/^NoNewPrivs:/locked/p' /proc/self/status
echo verbs $(ls /dev/infiniband 2>/dev/null | grep -c uverbs)
echo token $(ls /var/run/secrets/kubernetes.io /var/run/secrets/gb10 2>/dev/null | wc -l)
cat /srv/models/google--gemma-4-31B-it/config.json
touch /srv/models/x 2>/dev/null && echo models writable || echo models closed
touch /opt/gb10-cache/x && echo cache writable
"""


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab())
    made.lab.up(nodes=2, kubernetes=True)
    for node in ("spark1", "spark2"):
        for model in MODELS:
            copied = f"/srv/models/{model}"
            made.lab.shell(
                node, f"mkdir -p {copied}; echo model {model} > {copied}/config.json; {WEIGHTS} {copied}/{SHARD}"
            )
    return made


def options(mode: str) -> dict[str, Any]:
    """Return the variables that deploy a mode; the modes differ in nothing else."""
    return {
        "gb10_rdma_mode": mode,
        "gb10_models_dir": "/srv/models",
        "sglang_model_source": "local",
        "sglang_cache_dir": "/var/cache/sglang",
        "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}},
    }


@pytest.mark.parametrize("mode", LEVELS)
def test_each_mode_is_deployed_by_the_same_play_with_its_own_privileges(site: Site, mode: str) -> None:
    site.play("site", **options(mode))
    gate(site)
    namespace = site.get("namespace", "gb10-serving")["metadata"]["labels"]
    assert namespace["pod-security.kubernetes.io/enforce"] == LEVELS[mode]
    assert namespace["gb10.cluster/rdma-mode"] == mode
    site.incarnations()
    for rank in (0, 1):
        seen = look(site, rank)
        assert int(seen["verbs"]) > 0, seen
        assert seen["token"] == "0"
        assert seen["model"] == "google--gemma-4-31B-it"
        assert (seen["models"], seen["cache"]) == ("closed", "writable")
        capabilities = int(seen["caps"], 16)
        if mode == "restricted":
            assert (seen["uid"], capabilities, seen["seccomp"], seen["locked"]) == ("1000", 0, "2", "1")
        else:
            assert seen["uid"] == "0"
            assert capabilities & IPC_LOCK
    loud = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loud"},
        "spec": {"containers": [{"name": "a", "image": "a", "securityContext": {"privileged": True}}]},
    }
    words = ("create", "--dry-run=server", "-f", "-")
    answer = site.ask(*words, stdin=json.dumps(loud)).stderr
    assert ('violates PodSecurity "restricted' in answer) is (mode == "restricted"), answer
    # The next mode replaces the group.
    refuse_without_devices(site, "WrongTransport")


def refuse_without_devices(site: Site, reason: str) -> None:
    """Replace rank 1 by a pod without device nodes, which must not become ready; its condition has this reason."""
    place, worker = "/spec/template/spec/containers/0", site.get(f"statefulset/{site.group}-1")
    container = worker["spec"]["template"]["spec"]["containers"][0]
    own = {
        kind: {name: of for name, of in amounts.items() if not name.startswith(("rdma/", "gb10.cluster/"))}
        for kind, amounts in container["resources"].items()
    }
    assert own != container["resources"]
    change = {"op": "replace", "path": f"{place}/resources", "value": own}
    old = site.pods()[1]["metadata"]["uid"]
    site.kubectl("patch", f"statefulset/{site.group}-1", "--type=json", "-p", json.dumps([change]))
    site.kubectl("delete", "pod", f"{site.group}-1-0", "--grace-period=0", "--force")
    seen: set[str] = set()
    until = time.monotonic() + (120 if reason else 30)
    while time.monotonic() < until and not (reason and reason in seen):
        time.sleep(2)
        pods = site.pods()
        if len(pods) == 2 and pods[1]["metadata"]["uid"] != old:
            assert not is_ready(pods[1])
            conditions = pods[1]["status"].get("conditions", [])
            seen |= {c.get("reason", "") for c in conditions if c["type"] == "gb10.cluster/transport"}
            seen.add("")
    assert reason in seen, seen
    assert not any(map(is_ready, site.pods()))


def test_the_sriov_device_plugin_hands_out_vfs_with_their_own_device_nodes_and_planned_addresses(site: Site) -> None:
    site.play("fabric")
    for node in ("spark1", "spark2"):
        # host-device looks up VFs by PCI address in /sys, which does not have the simulated VFs.
        site.lab.shell(node, PCI)
    site.play("site", **options("restricted"), gb10_sriov_resource_prefix="gb10.cluster")
    site.incarnations()
    gate(site)
    second = site.play("site", **options("restricted"), gb10_sriov_resource_prefix="gb10.cluster")
    assert changed(second) == 0
    for rank, pod in enumerate(site.pods()):
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits["gb10.cluster/gb10_rail0_vf0"] == limits["gb10.cluster/gb10_rail1_vf0"] == "1"
        assert "rdma/gb10" not in limits
        status = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        assert [entry["ips"] for entry in status[1:]] == [[f"10.100.0.{rank + 1}"], [f"10.101.0.{rank + 1}"]]
        assert look(site, rank)["verbs"] == "2"
    nads = site.get("network-attachment-definitions")["items"]
    assert all('"device"' not in nad["spec"]["config"] for nad in nads)


def gate(site: Site) -> None:
    """Check that playbook site proved RDMA for every rank; delete the file, so that the next run must write one."""
    (path,) = site.lab.results.rglob("transport.json")
    verdict = json.loads(path.read_text())
    path.unlink()
    assert (verdict["satisfied"], verdict["transport_class"]) == (True, "rdma")


def look(site: Site, rank: int) -> dict[str, str]:
    """Return user, privileges and devices of a rank's process by name."""
    pod = f"{site.group}-{rank}-0"
    out = site.kubectl("exec", "--container=sglang", pod, "--", "sh", "-c", LOOK)
    return dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line or "\t" in line)


def test_locked_memory_is_unlimited_for_pods_without_the_capability_ipc_lock(site: Site) -> None:
    for node in ("spark1", "spark2"):
        unit = site.lab.shell(node, "cat /etc/systemd/system/k3s-agent.service")
        assert "LimitMEMLOCK=infinity" in unit
        assert "nonroot-devices: true" in site.lab.shell(node, "cat /etc/rancher/k3s/config.yaml")
    assert site.lab.shell("control", "systemctl is-active k3s") == "active"


def test_a_rank_without_its_sriov_devices_does_not_become_ready(site: Site) -> None:
    # The CNI plugin refuses a pod without the VFs that its networks name, so no server and no sidecar starts.
    refuse_without_devices(site, "")


def test_stopping_deletes_the_volumes_from_the_cluster_and_leaves_the_models(site: Site) -> None:
    assert "gb10-serving-gemma-4-31b-it-models" in site.kubectl("get", "persistentvolumes")
    site.play("serve_stop", instance=site.group)
    assert site.kubectl("get", "persistentvolumes", "-o", "name") == ""
    assert site.lab.shell("spark1", f"ls /srv/models/{MODELS[0]}") == f"config.json\n{SHARD}"
