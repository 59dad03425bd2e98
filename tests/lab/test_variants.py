# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the playbooks say about unusual machines: .local names, one layer-2 domain, a small disk.

One lab, in the order of this file; the DHCP server is in test_fabric_delivered.py, a full disk in test_one_node.py.
"""

from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site

COVERS = (
    "roles/preflight",
    "plugins/module_utils/_node",
    "plugins/plugin_utils/_node",
    "plugins/plugin_utils/_inventory",
    "playbooks/check.yml",
)

NODES = ("spark1", "spark2")


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    made = Site(make_lab("2x-gb10-direct", "lab"))
    made.lab.up(nodes=2)
    return made


def test_a_local_name_works_for_ansible_and_is_refused_for_the_api(site: Site) -> None:
    beside = site.lab.state / "local.yml"
    ssh = f"-F {site.lab.state}/ssh/config"
    beside.write_text(
        "".join(["all:\n  hosts:\n", *(f"    {node}: {{ansible_host: {node}.local, ansible_ssh_common_args: {ssh}}}\n"
                                       for node in NODES)])
    )  # fmt: skip
    said = " ".join(site.play("preflight", "-i", beside, check=False).split())
    assert "unreachable=0" in said
    assert "spark1.local" in said
    assert "nodes could not resolve a .local name" in said


def test_rails_in_one_layer_2_domain_work_and_a_wrong_mac_is_named(site: Site) -> None:
    site.lab("fault", "all", "one-domain")
    site.play("fabric")
    # Every function answers for every address, but the right one (8: for none), which could be the first.
    off = "for file in /proc/sys/net/ipv4/conf/{all,en*}/arp_ignore; do echo 0 > $file; done"
    silent = "for file in /proc/sys/net/ipv4/conf/enp1s0f0v*/arp_ignore; do echo 8 > $file; done"
    site.lab.shell("spark2", f"{off}; {silent}")
    site.lab.shell("spark1", "ip neighbour flush all")
    said = " ".join(site.play("fabric", "--tags", "fabric_check", check=False).split())
    assert "answers with the MAC of" in said
    assert "RoCE goes to the wrong function, although pings pass" in said


def test_a_small_disk_is_named_with_its_size_before_anything_is_changed(site: Site) -> None:
    site.lab("fault", "spark2", "small-disk")
    said = " ".join(site.play("site", "--tags", "preflight", check=False).split())
    assert "error: spark2: /var/lib/rancher/k3s, /srv/models = '3 of 3 GiB free'" in said, said[-6000:]
    assert "spark1: /srv/models" not in said
