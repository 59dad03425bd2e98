# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each RDMA mode deployed by the same play; its level proved by admission, its pods looked into, its transport gated.

One lab of two nodes that goes from mode to mode; models lie in a directory of the nodes in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site

MODELS = ("google--gemma-4-31B-it", "google--gemma-4-31B-it-assistant")
LEVELS = {"privileged": "privileged", "ipc_lock": "privileged", "restricted": "restricted"}
# 1 << 14, IPC_LOCK in /proc/PID/status
IPC_LOCK = 0x4000
LOOK = """
echo uid $(id -u); sed -n 's/^CapEff:/caps/p;s/^Seccomp:/seccomp/p;s/^NoNewPrivs:/locked/p' /proc/self/status
echo verbs $(ls /dev/infiniband 2>/dev/null | grep -c uverbs)
echo token $(ls /var/run/secrets/kubernetes.io 2>/dev/null | wc -l)
cat /srv/models/google--gemma-4-31B-it/config.json
touch /srv/models/x 2>/dev/null && echo models writable || echo models closed
touch ~/.cache/x && echo cache writable
"""


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab())
    made.up(nodes=2)
    for node in ("spark1", "spark2"):
        for model in MODELS:
            made.lab.shell(node, f"mkdir -p /srv/models/{model}; echo model {model} > /srv/models/{model}/config.json")
    return made


@pytest.mark.parametrize("mode", LEVELS)
def test_a_mode_is_deployed_by_the_same_play_and_confined(site: Site, mode: str) -> None:
    output = site.play(
        "site",
        gb10_rdma_mode=mode,
        gb10_models_dir="/srv/models",
        sglang_model_source="local",
        sglang_cache_dir="/var/cache/sglang",
        serving_plan_overrides={"topology": {"nodes": 2, "tp": 2}},
    )
    # playbook site ends with the gate; it says so in its own words
    assert "RoCE" in output
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
    words = ("create", "--dry-run=server", "--namespace=gb10-serving", "-f", "-")
    answer = site.kubectl(*words, stdin=json.dumps(loud), check=False)
    assert ('violates PodSecurity "restricted' in answer) is (mode == "restricted"), answer


def look(site: Site, rank: int) -> dict[str, str]:
    """What a rank is and has, by name."""
    pod = f"{site.group}-{rank}-0"
    out = site.kubectl("exec", "--namespace=gb10-serving", "--container=sglang", pod, "--", "sh", "-c", LOOK)
    return dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line or "\t" in line)


def test_locked_memory_is_unlimited_for_pods_that_have_no_capability_to_lock_it(site: Site) -> None:
    for node in ("spark1", "spark2"):
        unit = site.lab.shell(node, "cat /etc/systemd/system/k3s-agent.service")
        assert "LimitMEMLOCK=infinity" in unit
        assert "nonroot-devices: true" in site.lab.shell(node, "cat /etc/rancher/k3s/config.yaml")
    assert site.lab.shell("control", "systemctl is-active k3s") == "active"


def test_stopping_takes_the_claimed_directories_out_of_the_cluster_and_leaves_the_models(site: Site) -> None:
    assert "gb10-serving-gemma-4-31b-it-models" in site.kubectl("get", "persistentvolumes")
    site.play("serve_stop", instance=site.group)
    assert site.kubectl("get", "persistentvolumes", "-o", "name") == ""
    assert site.lab.shell("spark1", f"ls /srv/models/{MODELS[0]}") == "config.json"
