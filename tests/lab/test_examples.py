# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy the example inventories as they stand on the hardware that they describe; no Kubernetes.

test_demo.py plays 2x-gb10-direct, test_documented.py 4x-gb10-switch.
"""

from collections.abc import Callable

import pytest
from labcommand import LabCommand, changed, recap
from sitecommand import Site

COVERS = (
    "inventory/3x-gb10-ring",
    "inventory/1x-b300",
    "plugins/plugin_utils/_fabric",
    "playbooks/preflight.yml",
    "playbooks/reset.yml",
)

# example: number of hosts, layout of the lab, kind of hosts
EXAMPLES = {
    "3x-gb10-ring": (["spark1", "spark2", "spark3"], "ring", "spark"),
    # an Ubuntu server has no NetworkManager
    "1x-b300": (["b300-1"], "b300", "kind"),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_planned_checked_and_its_fabric_deployed_and_reset(
    make_lab: Callable[..., LabCommand], example: str
) -> None:
    hosts, layout, kind = EXAMPLES[example]
    site = Site(make_lab(example, "lab"))
    site.lab.up(nodes=len(hosts), layout=layout, hosts=kind)
    site.before = {host: site.lab.fingerprint(host) for host in hosts}
    site.play("preflight")
    site.play("site", "--check", "--tags", "plan,preflight,fabric")
    assert not any(site.left(host, "^$") for host in hosts)
    said = site.play("fabric")
    assert set(recap(said, "changed")) >= set(hosts)
    assert changed(site.play("fabric")) == 0
    site.play("reset", k3s_reset_confirm="yes")
    left = {host: site.left(host, r"^setting .* forwarding") for host in hosts}
    assert not any(left.values()), left
    site.lab("down")
