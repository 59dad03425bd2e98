# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve on every line of K3s that docs/upgrade.md calls tested: install the oldest one and upgrade to each next one.

The kubelets and API servers are those of the line's own Kubernetes; what is around them is the same on every line.
"""

import re
from collections.abc import Callable

import pytest
from labcommand import LabCommand, changed
from sitecommand import VERSIONS, Site, prepare, release

COVERS = ("playbooks/upgrade.yml", "roles/k3s", "docs/upgrade.md", "lab/kubernetes/lines")

GROUP = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}}
LINES = sorted([VERSIONS["k3s"], *VERSIONS["lines"]])
HOSTS = ("control", "spark1", "spark2")


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    """Return a lab on which the oldest line serves a group."""
    prepare(VERSIONS["k3s"], *VERSIONS["lines"])
    made = Site(make_lab(), values=GROUP)
    made.lab.up(2, kubernetes=True)
    made.play("site", **release(LINES[0]))
    return made


@pytest.mark.parametrize("version", LINES)
def test_a_group_serves_over_rdma_and_a_second_run_changes_nothing(site: Site, version: str) -> None:
    if version != LINES[0]:
        site.play("upgrade", **release(version))
    assert site.versions() == dict.fromkeys(HOSTS, version)
    before = site.incarnations()
    assert "Transport: ib (rdma)" in (output := site.play("site", **release(version))), output[-4000:]
    assert changed(output) == 0, re.findall(r"TASK \[(?:(?!TASK \[).)*?\nchanged: [^\n]*", output, re.DOTALL)
    assert site.incarnations() == before


def test_the_newest_line_is_removed(site: Site) -> None:
    site.play("reset", k3s_reset_confirm="yes", **release(LINES[-1]))
    for host in HOSTS:
        site.lab.shell(host, "! test -e /usr/local/bin/k3s && ! test -e /var/lib/rancher/k3s")
