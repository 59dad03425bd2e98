# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts whose only uplink is Wi-Fi; NetworkManager renders netplan, as on a Spark that was set up without a cable.

Real: NetworkManager, wpa_supplicant, hostapd and the kernel's wireless stack. Simulated: the radios (mac80211_hwsim).
The tests build on each other, in the order of this file.
"""

import json
import re
from pathlib import Path

import pytest
from test_fabric import NUMVFS, gids, mapped, play
from vms import Vm, Vms

COVERS = ("roles/netplan", "plugins/module_utils/_fabric", "lab/vm")

RESET = Path(__file__).resolve().parent / "fabric_reset.yml"
# The form in which NetworkManager stores a connection in netplan. 10.0.2.15 is what QEMU forwards ssh to.
CONNECTION = """network:
  version: 2
  wifis:
    NM-5f0c5e0a-3c5b-4c6e-8b1e-0d1f2a3b4c5d:
      renderer: NetworkManager
      match: {name: wlan0}
      addresses: [10.0.2.15/24]
      routes: [{to: default, via: 10.0.2.2}]
      access-points:
        lab:
          auth: {key-management: none}
          networkmanager: {uuid: 5f0c5e0a-3c5b-4c6e-8b1e-0d1f2a3b4c5d, name: lab}
      networkmanager: {uuid: 5f0c5e0a-3c5b-4c6e-8b1e-0d1f2a3b4c5d, name: lab}
"""
SWITCH_TO_WIFI = f"""set -e
cd /etc/netplan
rm 50-cloud-init.yaml
printf 'network: {{version: 2, renderer: NetworkManager}}\\n' > 01-network-manager-all.yaml
cat > 90-NM-5f0c5e0a-3c5b-4c6e-8b1e-0d1f2a3b4c5d.yaml <<'END'
{CONNECTION}END
chmod 600 *.yaml
systemctl disable --quiet systemd-networkd.service systemd-networkd.socket
systemctl enable --quiet access-point NetworkManager"""


@pytest.fixture(scope="module")
def wireless(machines: Vms) -> Vms:
    """Return two machines whose only uplink is Wi-Fi, after the reboot that made it so."""
    for vm in machines.vms:
        machines.ssh(vm, SWITCH_TO_WIFI)
    machines.reboot()
    return machines


def uplink(machines: Vms, vm: Vm) -> dict[str, str]:
    """Return what a change of the fabric must not touch: address, routes, connection, and how often Wi-Fi connected."""
    shown = {
        "address": "ip -br address show wlan0",
        "routes": "ip route show dev wlan0",
        "connection": "nmcli -g GENERAL.CONNECTION,GENERAL.STATE device show wlan0",
        "associations": "journalctl -b -k -o cat | grep -c 'wlan0: associated'",
        "netplan": "cd /etc/netplan && sha256sum 01-network-manager-all.yaml 90-NM-*",
    }
    return {name: machines.ssh(vm, script) for name, script in shown.items()}


def test_the_machines_have_no_uplink_but_wifi(wireless: Vms) -> None:
    for vm in wireless.vms:
        addresses = json.loads(wireless.ssh(vm, "ip -j -4 address"))
        assert {link["ifname"] for link in addresses if link["addr_info"]} == {"lo", "wlan0"}
        assert wireless.ssh(vm, "systemctl is-active NetworkManager systemd-networkd", ok=False).split() == [
            "active",
            "inactive",
        ]
        assert uplink(wireless, vm)["connection"].startswith("lab")


def test_the_fabric_is_built_over_wifi_and_leaves_it_alone(wireless: Vms) -> None:
    before = [uplink(wireless, vm) for vm in wireless.vms]
    said = play(wireless)
    assert "4 directions on all rails and VFs pass with full-size packets" in said
    assert [uplink(wireless, vm) for vm in wireless.vms] == before
    counts = re.findall(r"vm\d : ok=\d+ changed=(\d+) unreachable=0 failed=0", play(wireless))
    assert counts == ["0", "0"]


def test_wifi_and_fabric_are_back_after_a_reboot(wireless: Vms) -> None:
    wireless.reboot()
    for vm, table in zip(wireless.vms, gids(wireless), strict=True):
        shown = uplink(wireless, vm)
        assert "10.0.2.15/24" in shown["address"]
        assert "default via 10.0.2.2" in shown["routes"]
        assert mapped(vm.number) in table
        assert wireless.ssh(vm, "cat /sys/class/net/enp1s0v*/mtu").split() == ["9000", "9000"]
    assert "0% packet loss" in wireless.ssh(wireless.vms[0], "ping -M do -s 8972 -c 3 -W 10 -I enp1s0v0 10.100.0.2")


def test_reset_removes_the_fabric_over_wifi(wireless: Vms) -> None:
    before = [uplink(wireless, vm) for vm in wireless.vms]
    play(wireless, playbook=RESET)
    for vm in wireless.vms:
        assert wireless.ssh(vm, f"cat {NUMVFS}") == "0"
    assert [uplink(wireless, vm) for vm in wireless.vms] == before
