# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook update on two hosts with simulated kernels in a local APT repository: refused, good, interrupted, and
one that steps back. GRUB and the kernels are simulated, APT, dpkg, systemd and the reboots are real."""

from collections.abc import Callable

import pytest
from labcommand import LabCommand
from sitecommand import Site
from updatehosts import HOST, KERNEL, NODES, publish, publish_kernel, running, state, words

COVERS = (
    "playbooks/update.yml",
    "playbooks/group_stop.yml",
    "playbooks/group_start.yml",
    "roles/update",
    "plugins/module_utils/_node",
    "plugins/plugin_utils/_node",
    "plugins/modules/node_update.py",
    "plugins/action/update_plan.py",
)

ONE = ("--limit", "spark1")


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab(), values={"gb10_fabric_vf_count": 1})
    made.lab.up(nodes=2)
    for node in NODES:
        made.lab.shell(node, HOST)
    made.play("fabric")
    return made


def test_check_prints_the_plan_and_changes_nothing(site: Site) -> None:
    kernel = publish_kernel(site, 1015)
    publish(site, "tool 1.1 ''", "linux-generic-hwe-24.04 7.0.0.31 ''")
    before = [site.lab.fingerprint(node) for node in NODES]
    said = words(site.play("update", "--check"))
    for number, node in enumerate(NODES, start=1):
        assert f"{number}. {node}: hold linux-generic-hwe-24.04; install linux-image-{kernel}" in said, said[-3000:]
    assert f"boot {kernel} once instead of {KERNEL.format(1014)}; check the host and the fabric" in said
    assert [site.lab.fingerprint(node) for node in NODES] == before


def test_an_update_with_a_known_problem_is_refused_before_a_host_changes(site: Site) -> None:
    publish(site, "linux-image-7.0.0-1019-nvidia 7.0.0-1019.1 '' 7.0.0-1019-nvidia")
    publish(site, "linux-generic-hwe-24.04 7.0.0.32 linux-image-7.0.0-1019-nvidia")
    said = words(site.play("update", check=False, update_kernel_line="7.0"))
    assert "the update would bring a known problem that the host does not have now" in said, said[-3000:]
    assert "[update.known]" in said
    assert running(site) == [KERNEL.format(1014)] * 2
    assert site.lab.shell("spark1", "ls /var/lib/gb10/update.json 2>&1 || true").endswith("No such file or directory")


def test_a_good_update_boots_the_new_kernel_and_holds_what_must_stay(site: Site) -> None:
    site.play("update")
    assert running(site) == [KERNEL.format(1015)] * 2
    for node in NODES:
        assert "1015" in site.lab.shell(node, "cat /boot/grub/saved")
        assert site.lab.shell(node, "apt-mark showhold") == "linux-generic-hwe-24.04"
        assert site.lab.shell(node, "dpkg-query --show --showformat='${Version}' tool") == "1.1"
        assert (state(site, node)["phase"], state(site, node)["before"]["tool"]) == ("settled", "1.0")


def test_a_lost_controller_leaves_no_host_half_updated(site: Site) -> None:
    kernel = publish_kernel(site, 1016)
    publish(site, "slow 1.0 ''")
    for node in NODES:
        site.lab.shell(node, "touch /root/go; apt-get -qq install slow; rm /root/go")
    publish(site, "slow 2.0 ''")
    site.lab.killed("update", r"Packages \| Wait until they are installed", *ONE, **site.values)
    assert site.lab.shell("spark1", "systemctl is-active gb10-update") == "active"
    assert state(site, "spark1")["phase"] == "installing"
    site.lab.shell("spark1", "touch /root/go; while systemctl is-active --quiet gb10-update; do sleep 0.2; done")
    assert site.lab.shell("spark1", "dpkg --audit; dpkg-query --show --showformat='${Version}' slow") == "2.0"
    assert running(site)[0] == KERNEL.format(1015)
    said = words(site.play("update", *ONE))
    assert "1. spark1: go on with the update of" in said
    assert running(site) == [kernel, KERNEL.format(1015)]
    assert state(site, "spark1")["phase"] == "settled"


def test_a_node_whose_check_fails_boots_the_kernel_from_before_and_ends_the_run(site: Site) -> None:
    kernel = publish_kernel(site, 1017)
    site.lab.shell("spark1", f"echo {kernel} > /boot/faulty")
    said = words(site.play("update", check=False))
    assert "[update.host.failed]" in said, said[-3000:]
    assert running(site) == [KERNEL.format(1016), KERNEL.format(1015)]
    assert state(site, "spark1")["phase"] == "returned"
    assert state(site, "spark2")["kernel_after"] == KERNEL.format(1015), "the other node was not changed"


def test_a_kernel_that_does_not_start_is_left_and_tried_again_only_on_demand(site: Site) -> None:
    kernel = KERNEL.format(1017)
    site.lab.shell("spark1", f"mv /boot/faulty /boot/unbootable; echo {kernel} > /boot/unbootable")
    said = words(site.play("update", *ONE, check=False, update_retry=True))
    assert f"it runs kernel {KERNEL.format(1016)} instead of {kernel}" in said, said[-3000:]
    site.lab.shell("spark1", "rm /boot/unbootable")
    assert "an earlier update booted this kernel, the checks failed" in words(site.play("update", "--check", *ONE))
    site.play("update", *ONE, update_retry=True)
    assert running(site)[0] == kernel
    site.play("update", *ONE, update_back=True)
    assert running(site)[0] == KERNEL.format(1016)
