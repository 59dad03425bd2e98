# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve with a first step that compiles kernels for as long as on a GB10: six minutes, here six times faster.

Every limit is a sixth of its default, so the first step has the same share of each as on hardware. The tests build on
each other: later starts find the kernels of the first one, unless they run another image.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labcommand import LabCommand
from sitecommand import Site, incarnations, is_ready

COVERS = ("plugins/module_utils/_pod", "plugins/modules/jit_cache.py", "roles/sglang")

NODES = ("spark1", "spark2")
FIRST_STEP = 60
LIMITS: dict[str, Any] = {
    "sglang_startup_timeout": 600,
    "sglang_wait_timeout": 600,
    "sglang_first_step_timeout": 300,
    "sglang_stuck_after": 20,
    "serving_plan_env": {"SGLANG_STANDIN_FIRST_STEP_SECONDS": str(FIRST_STEP)},
}
SERVED = {
    **LIMITS,
    "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}, "server_args": {"watchdog_timeout": 600}},
}
CACHE = "/var/lib/gb10-jit-cache"
OTHER = "localhost/gb10/another-sglang"
# Limit of a start without progress, and a load that takes longer, with ten log lines.
LIMIT, LOAD = 75, 120
MODELS = "/srv/models"
# A complete model for the check of copied ones: a safetensors file without tensors.
COPY = """
mkdir -p {dir} && cd {dir} && echo '{{}}' > config.json && printf '\\002\\0\\0\\0\\0\\0\\0\\0{{}}' > model.safetensors
"""


def keys(site: Site) -> set[str]:
    """Return the directories of compiled kernels on the head's node that hold any."""
    found = site.lab.shell(NODES[0], f"ls -d {CACHE}/*/triton/standin-kernels")
    return {Path(path).parts[-3] for path in found.split()}


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    return Site.deployed(make_lab(), nodes=2)


def test_a_first_step_restarts_nothing_and_the_wait_for_it_is_not_silent(site: Site) -> None:
    for node in NODES:
        site.lab.shell(node, f"rm -rf {CACHE}")
    said = site.play("serve", **SERVED)
    shown = [float(seconds) for seconds in re.findall(r"waiting for the group for (\d+) s", said)]
    assert shown
    assert all(later - earlier <= 60 for earlier, later in zip([0.0, *shown], shown, strict=False))
    pods = site.pods()
    assert len(pods) == len(NODES)
    assert all(map(is_ready, pods))
    assert {name.rpartition("/")[2] for name in incarnations(pods)} == {"0"}
    log = site.kubectl("logs", f"{site.group}-0-0", "-c", "sglang")
    assert f"Compiling kernels for {FIRST_STEP} s" in log
    supervisor = site.kubectl("logs", f"deployment/{site.group}-supervisor")
    assert "restarting the group" not in supervisor


def test_another_image_does_not_use_the_kernels_of_the_first_one(site: Site) -> None:
    first = keys(site)
    image = site.pods()[0]["spec"]["containers"][0]["image"]
    for node in NODES:
        site.lab("exec", node, "--", "k3s", "ctr", "images", "tag", image, f"{OTHER}:{image.rpartition(':')[2]}")
    site.play("serve", gb10_sglang_images_from=f"{OTHER}:{{version}}", **SERVED)
    assert f"Compiling kernels for {FIRST_STEP} s" in site.kubectl("logs", f"{site.group}-0-0", "-c", "sglang")
    assert len(first) == 1
    assert len(keys(site)) == 2
    assert first < keys(site)


def test_a_load_that_goes_on_outlives_all_limits_and_a_later_start_finds_the_kernels(site: Site) -> None:
    for node in NODES:
        for name in ("google--gemma-4-31B-it", "google--gemma-4-31B-it-assistant"):
            site.lab.shell(node, COPY.format(dir=f"{MODELS}/{name}"))
    values = {
        "sglang_startup_timeout": LIMIT,
        "sglang_wait_timeout": 0,
        "gb10_models_dir": MODELS,
        "sglang_cache_dir": CACHE,
        # Weights that download, or are large, have more time.
        "sglang_model_source": "local",
        "serving_plan_overrides": {**SERVED["serving_plan_overrides"], "model": {"weights_gb": 0.1}},
        "serving_plan_env": {**LIMITS["serving_plan_env"], "SGLANG_STANDIN_LOAD_SECONDS": str(LOAD)},
    }
    said = site.play("serve", **SERVED | values)
    assert max(float(seconds) for seconds in re.findall(r"waiting for the group for (\d+) s", said)) > LIMIT
    # A rank that loads has not proven its transport; its log is shown all the same.
    assert re.search(r"spark1: transport: .*\n    log: .*Loading safetensors checkpoint shards", said)
    assert {name.rpartition("/")[2] for name in incarnations(site.pods())} == {"0"}
    pod = site.get("deployment", f"{site.group}-supervisor")["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert float(words[words.index("--start-timeout") + 1]) < LOAD
    assert "restarting the group" not in site.kubectl("logs", f"deployment/{site.group}-supervisor")
    assert "Compiling kernels" not in site.kubectl("logs", f"{site.group}-0-0", "-c", "sglang")
    assert len(keys(site)) == 2
