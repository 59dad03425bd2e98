# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fill the disk of a node's images and models, and test that serving refuses the node with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site

ONE = {"serving_plan_overrides": {"topology": {"nodes": 1, "tp": 1}}}


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    lab = make_lab()
    lab.up(1, kubernetes=True)
    lab("fault", "spark1", "small-disk")
    made = Site(lab)
    made.play("fabric")
    made.play("kubernetes")
    return made


def test_a_node_under_disk_pressure_is_refused_with_the_reason(site: Site) -> None:
    site.lab.shell("spark1", "head -c 3G /dev/zero > /var/lib/rancher/models/fill 2>/dev/null || true")
    site.kubectl("wait", "--for=condition=DiskPressure", "node/spark1", "--timeout=120s")
    said = " ".join(site.play("serve", check=False, **ONE).split())
    assert "serving.node.disk" in said
    assert "the disk of the node is too full" in said
    assert "Free space on it" in said
