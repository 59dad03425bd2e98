# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test faults of one GPU node in the order of this file: no nvidia runtime, and a full disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site

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
    assert "K3s found no container runtime nvidia when it started" in output
    assert "apt-get install nvidia-container-toolkit" in output
    assert "apiVersion" not in output
    site.lab.shell("spark1", f"mv {RUNTIME}.away {RUNTIME}; systemctl restart k3s-agent")
    site.play("kubernetes")


def test_a_node_under_disk_pressure_is_refused_with_the_reason(site: Site) -> None:
    site.lab.shell("spark1", "head -c 3G /dev/zero > /var/lib/rancher/models/fill 2>/dev/null || true")
    site.kubectl("wait", "--for=condition=DiskPressure", "node/spark1", "--timeout=120s")
    said = " ".join(site.play("serve", check=False, **ONE).split())
    assert "serving.node.disk" in said
    assert "the disk of the node is too full" in said
    assert "Free space on it" in said
