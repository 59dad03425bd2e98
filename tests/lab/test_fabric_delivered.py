# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the fabric on hosts as delivered: NetworkManager renders netplan's files, and other settings conflict."""

import json
from collections.abc import Callable

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site

COVERS = (
    "roles/netplan",
    "roles/sriov",
    "plugins/module_utils/_fabric",
)

NODES = ("spark1", "spark2")
VFS = {"gb10_fabric_vf_count": 1}


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site(make_lab())
    made.lab.up(nodes=2)
    made.before = {host: made.lab.fingerprint(host) for host in NODES}
    return made


def states(site: Site, host: str) -> dict[str, str]:
    """Return NetworkManager's state of each interface."""
    lines = site.lab.shell(host, "nmcli --terse --fields DEVICE,STATE device").splitlines()
    return dict(line.split(":", 1) for line in lines)


def test_a_host_is_as_delivered(site: Site) -> None:
    assert site.lab.shell("spark1", "systemctl is-active NetworkManager") == "active"
    assert site.lab.shell("spark1", "systemctl is-active systemd-networkd || true") == "inactive"
    assert states(site, "spark1") == {
        "lo": "connected (externally)",
        **dict.fromkeys(("enP7s7", "enp1s0f0np0", "enP2p1s0f0np0"), "connected"),
        # the other cage has no cable
        **dict.fromkeys(("enp1s0f1np1", "enP2p1s0f1np1"), "unavailable"),
    }
    assert states(site, "spark2")["enp1s0f0np0"].startswith("connecting")
    assert "FORWARD DROP" in site.lab.shell("spark1", "iptables -S FORWARD")
    refused = site.lab(
        "run", "--", "ssh", "-F", f"{site.lab.state}/ssh/config", "-l", "root", "spark1", "id", check=False
    )
    assert refused == ""


def test_a_file_that_netplan_refused_before_is_named_before_a_vf_is_made(site: Site) -> None:
    site.lab("fault", "spark2", "broken-netplan")
    done = site.lab.run(*site.lab.playbook("fabric", **VFS))
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    site.lab.shell("spark2", "rm /etc/netplan/90-NM-broken.yaml")
    assert "netplan already refuses the files that this host has now" in said
    assert "90-NM-broken.yaml" in said
    assert "v0" not in site.lab.shell("spark2", "ls /sys/class/net")


def test_a_user_without_become_is_told_so_before_a_vf_is_made(site: Site) -> None:
    said = " ".join(site.play("fabric", check=False, ansible_become=False, **VFS).split())
    assert "needs root: set `become: true`" in said
    assert "v0" not in site.lab.shell("spark1", "ls /sys/class/net")


def test_a_default_route_from_a_dhcp_server_on_the_fabric_is_named(site: Site) -> None:
    site.lab("fault", "spark1", "dhcp-server")
    leased = "until ip route show default dev enp1s0f0np0 | grep -q dhcp; do sleep 0.2; done"
    site.lab.shell("spark2", f"nmcli --wait 0 connection up netplan-enp1s0f0np0; timeout 30 bash -c '{leased}'")
    said = " ".join(site.play("fabric", check=False, **VFS).split())
    assert "it carries the default route of this host, which the DHCP server 192.168.177.1 gave it" in said
    site.lab.shell("spark1", "systemctl stop lab-dhcp; ip address del 192.168.177.1/24 dev enp1s0f0np0")
    site.lab.shell("spark2", "nmcli --wait 0 connection up netplan-enp1s0f0np0")


def test_network_manager_starts_dhcp_on_no_vf(site: Site) -> None:
    site.play("fabric", **VFS)
    site.lab("fault", "spark1", "dhcp-server")
    for host in NODES:
        found = states(site, host)
        assert {state for name, state in found.items() if "s0f0" in name} == {"unmanaged"}
        assert found["enP7s7"] == "connected"
        assert "dhcp4 (enp1s0f0v0)" not in site.lab.shell(host, "journalctl --boot --unit NetworkManager")
        assert "dhcp" not in site.lab.shell(host, "ip route")
    site.lab.shell("spark1", "systemctl stop lab-dhcp; ip address del 192.168.177.1/24 dev enp1s0f0np0")


def test_a_second_run_changes_nothing_and_a_reboot_brings_everything_back(site: Site) -> None:
    assert changed(site.play("fabric", **VFS)) == 0
    for host in NODES:
        site.lab("reboot", host)
    assert changed(site.play("fabric", **VFS)) == 0


def test_a_session_through_a_port_protects_it_behind_sudo(site: Site) -> None:
    """sudo removes SSH_CONNECTION, and this port has no default route."""
    site.lab.shell("spark1", "ip address add 10.99.0.111/32 dev enp1s0f0np0")
    through = {"ansible_host": "10.99.0.111", "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -F none"}
    beside = site.lab.state / "session.yml"
    beside.write_text(json.dumps({"gb10_nodes": {"hosts": {"spark1": through}}}))
    said = site.play("fabric", "-i", beside, check=False, **VFS)
    site.lab.shell("spark1", "ip address del 10.99.0.111/32 dev enp1s0f0np0")
    assert "this Ansible session comes in through it" in " ".join(said.split())


def test_reset_gives_the_ports_back_to_network_manager(site: Site) -> None:
    site.play("reset", k3s_reset_confirm="yes")
    left = {host: site.left(host, r"^setting .* forwarding") for host in NODES}
    assert not any(left.values()), json.dumps(left, indent=2)
    assert states(site, "spark1")["enp1s0f0np0"] == "connected"
    assert site.lab.shell("spark1", "systemctl is-active systemd-networkd || true") == "inactive"
