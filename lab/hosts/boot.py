# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED: bring a lab host to the state of a real host after power-on.

The namespace outlives the container, so that what a boot forgets must be forgotten here: VFs, the PFs' addresses and
MTU. Runs on the host as gb10-lab-boot.service, before the network.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

SETTINGS = Path("/opt/gb10-lab/host/host.json")
LOGIN = Path("/opt/gb10-lab/host/login")
KIND = Path("/opt/gb10-lab/host/kind")
SWITCH = "/opt/gb10-lab/switch.netns"


def ip(*words: str, switch: bool = False) -> str:
    """Run ip(8) here or in the switches' namespace; its output."""
    prefix = ["nsenter", f"--net={SWITCH}", "--"] if switch else []
    return subprocess.run([*prefix, "ip", *words], check=True, capture_output=True, text=True).stdout


def _new_boot_id() -> None:
    """Give this boot an id of its own, by which ansible.builtin.reboot and kubelet tell that a host has rebooted."""
    own = Path("/run/gb10-lab/boot_id")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(f"{uuid.uuid4()}\n")
    subprocess.run(["mount", "--bind", own, "/proc/sys/kernel/random/boot_id"], check=True)


def _show_hidden_mount() -> None:
    """Put something where podman's file was before systemd's /run hid it.

    kubelet asks the first mount of the disk for its size and gives up on a host where that one can't be seen
    (``cannot find filesystem info for device``); which of podman's files comes first is chance.
    """
    hidden = Path("/run/.containerenv")
    hidden.touch()
    subprocess.run(["mount", "--bind", "/etc/hostname", hidden], check=True)


def _make_login() -> None:
    """Give the ordinary user a sudo password and the home that ``podman cp`` left to root; at the first boot only."""
    user, _colon, _password = LOGIN.read_text().partition(":")
    hashes = dict(line.split(":")[:2] for line in Path("/etc/shadow").read_text().splitlines())
    if hashes[user].startswith("!"):
        subprocess.run(["chpasswd"], input=LOGIN.read_text(), text=True, check=True)
        subprocess.run(["chown", "-R", f"{user}:{user}", f"/home/{user}"], check=True)


def main() -> None:
    """Shared mounts for kubelet on every host; the fabric's beginning on nodes."""
    # kubelet's mount propagation needs what systemd does on real machines but not in containers
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    # networkd waits for udev to have seen an interface; no kernel event tells it of those that were there before
    subprocess.run(["udevadm", "trigger", "--action=add", "--subsystem-match=net"], check=True)
    _new_boot_id()
    _show_hidden_mount()
    _make_login()
    if KIND.read_text() == "spark":
        # NetworkManager gives mgmt0 its address at every boot; Docker's installation leaves this policy
        ip("address", "flush", "dev", "mgmt0")
        subprocess.run(["iptables", "-P", "FORWARD", "DROP"], check=True)
    if not SETTINGS.exists():
        return
    host = json.loads(SETTINGS.read_text())
    ports = [link["ifname"] for link in json.loads(ip("-j", "link", "show", switch=True))]
    for index, rail in enumerate(host["rails"]):
        for port in ports:
            if port.startswith(f"{host['name']}-r{index}v"):
                ip("link", "delete", port, switch=True)
        ip("-4", "address", "flush", "dev", rail["pf"])
        ip("-6", "address", "flush", "scope", "global", "dev", rail["pf"])
        ip("link", "set", rail["pf"], "mtu", "1500", "up")


main()
