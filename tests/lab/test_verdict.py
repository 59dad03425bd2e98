# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test on the lab's Kubernetes that the image judges its command lines before a running group is stopped.

The image is simulated; its parser is that of the release. One lab, in the order of this file.
"""

from collections.abc import Callable, Iterator

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site, incarnations, is_ready

COVERS = ("roles/sglang", "plugins/modules/serving_verdict.py", "plugins/module_utils/_kube", "lab/sglang")
IMAGE = "localhost/gb10/sglang-standin"
TWO = {"topology": {"nodes": 2, "tp": 2}}


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Site]:
    yield Site.deployed(make_lab(), nodes=2, serving_plan_overrides=TWO)


def leftovers(cluster: Site) -> str:
    """Return the pods that asked an image and are still there."""
    return cluster.kubectl("get", "pods", "-l", "gb10.cluster/verdict", "-o", "name")


def test_an_accepted_group_starts_and_a_second_run_does_not_ask_again(cluster: Site) -> None:
    output = cluster.play("serve")
    assert "(SIMULATED) in the image accepts the command lines of all 2 ranks." in output
    assert all(map(is_ready, cluster.pods()))
    assert leftovers(cluster) == ""
    output = cluster.play("serve")
    assert changed(output) == 0
    assert "in the image accepts" not in output


def test_an_image_of_another_release_refuses_and_the_running_group_stays(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    # The plan writes the flags of 0.5.13, and this image's parser is that of 0.5.23. The default preset has a drafter,
    # which the plan itself refuses on 0.5.13.
    wrong = {
        "serving_plan_preset": "baseline",
        "serving_plan_sglang_version": "0.5.13",
        "serving_plan_image": f"{IMAGE}:0.5.23",
        "gb10_sglang_images_from": "",
    }
    output = " ".join(cluster.play("serve", check=False, **wrong).split())
    assert "[serving.verdict.refused]" in output
    assert "--cuda-graph-max-bs" in output
    assert "no group was changed" in output
    assert incarnations(cluster.pods()) == before
    assert all(map(is_ready, cluster.pods()))
    assert leftovers(cluster) == ""


def test_a_check_that_crashes_is_a_warning_and_the_group_starts(cluster: Site) -> None:
    before = incarnations(cluster.pods())
    output = cluster.play("serve", serving_plan_env={"SGLANG_STANDIN_FAULT": "crash-in-check"})
    assert "Warning: SGLang in the image could not be asked" in " ".join(output.split())
    assert "libcuda.so.1" in output
    assert set(incarnations(cluster.pods())).isdisjoint(before)
    assert all(map(is_ready, cluster.pods()))
