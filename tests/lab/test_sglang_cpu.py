# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a tiny random model with real SGLang and the same playbook, as two ranks on the CPUs of two lab hosts.

Its image is built once from published packages (lab/sglang-cpu). A CPU cannot run NCCL,
so playbook verify must fail here.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labcommand import CHECKOUT, LABCTL, LabCommand
from sitecommand import Site, incarnations, is_ready

COVERS = ("lab/sglang-cpu", "plugins/plugin_utils/_sglang")

SOURCE = CHECKOUT / "lab" / "sglang-cpu"
GROUP = "tiny-llama-cpu"
NODES = ("spark1", "spark2")
MODELS = "/srv/models"
PROBE = ("python3", "/opt/gb10/generate_probe.py", "--port", "30000", "--timeout", "60")
VALUES = {
    "profile": GROUP,
    "gb10_profile_dirs": [str(SOURCE / "profiles")],
    "gb10_sglang_images_from": "",
    "gb10_models_dir": MODELS,
    "sglang_model_source": "local",
    # On CPUs SGLang uses Gloo.
    "sglang_transport_gate": "off",
    # The hosts share the memory of this machine, and real SGLang takes much of it.
    "sglang_memory_guard": False,
    "sglang_shm_size": "1Gi",
    "sglang_startup_timeout": 900,
    "sglang_wait_timeout": 900,
}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    built = subprocess.run([SOURCE / "build"], check=True, stdout=subprocess.PIPE, text=True, timeout=1500)
    made = Site.deployed(make_lab(), nodes=len(NODES))
    made.group = GROUP
    made.import_image(Path(built.stdout.strip()), NODES)
    for node in NODES:
        with (SOURCE / "model").open("rb") as program:
            writing = [LABCTL, "exec", node, "--", "python3", "-", f"{MODELS}/gb10--tiny-llama"]
            subprocess.run(writing, stdin=program, check=True, env=made.lab.environment, timeout=60)
    yield made


def server_info(cluster: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.in_head(*PROBE, "--get", "/server_info"))
    return found


def test_two_ranks_of_real_sglang_are_served(cluster: Site) -> None:
    output = cluster.play("serve", **VALUES)
    pods = cluster.pods()
    assert [pod["spec"]["nodeName"] for pod in pods] == list(NODES)
    assert all(map(is_ready, pods))
    assert "SGLang runs everything as the profile says" in output, " ".join(output.split())[-3000:]
    info = server_info(cluster)
    assert (info["version"], info["tp_size"], info["nnodes"], info["device"]) == ("0.5.20", 2, 2, "cpu")
    assert info["dist_init_addr"] == "10.100.0.1:20000"


def test_it_generates_and_counts(cluster: Site) -> None:
    figures = json.loads(cluster.in_head(*PROBE, "--measure", "64"))
    print(f"real SGLang, two ranks on CPUs: {figures}")
    assert figures["tokens"] == 64
    metrics = cluster.in_head(*PROBE, "--get", "/metrics")
    counted = [line for line in metrics.splitlines() if line.startswith("sglang:generation_tokens_total{")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) >= 64


def test_another_preset_replaces_both_ranks_and_what_sglang_rewrites_is_reported(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    said = " ".join(cluster.play("serve", **VALUES, preset="rewritten").split())
    assert "sampling_backend: asked for flashinfer, runs pytorch" in said, said[-3000:]
    assert "runs everything as the profile says" not in said
    assert server_info(cluster)["sampling_backend"] == "pytorch"
    assert not before & incarnations(cluster.pods())


def test_a_killed_worker_of_real_sglang_brings_both_back(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    cluster.signal("spark2", 1, "KILL")
    print(f"a killed worker of real SGLang: ready again after {cluster.wait_ready(before, 2, 900):.0f} s")


def test_without_nccl_the_transport_gate_fails(cluster: Site) -> None:
    # Ansible wraps long messages, so compare them without line breaks.
    said = " ".join(cluster.play("verify", check=False, **VALUES, preset="rewritten").split())
    assert "nothing in the log says which transport NCCL took" in said, said[-3000:]


def test_it_stops_the_head_first_and_leaves_nothing(cluster: Site) -> None:
    cluster.play("serve_stop", instance=GROUP)
    assert cluster.pods() == []
