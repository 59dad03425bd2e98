# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED: bring a lab host to the state of a real host after power-on.

The network namespace outlives the container. This program therefore removes what a real reboot removes: VFs, and the
addresses and MTU of the PFs. It runs on the host as gb10-lab-boot.service, before the network starts.
"""

import json
import subprocess
import uuid
from pathlib import Path

SETTINGS = Path("/opt/gb10-lab/host/host.json")
LOGIN = Path("/opt/gb10-lab/host/login")
KIND = Path("/opt/gb10-lab/host/kind")
MANAGEMENT = Path("/opt/gb10-lab/host/management")
SWITCH = "/opt/gb10-lab/switch.netns"


def ip(*words: str, switch: bool = False) -> str:
    """Run ip(8) here or in the switches' namespace; return its output."""
    prefix = ["nsenter", f"--net={SWITCH}", "--"] if switch else []
    return subprocess.run([*prefix, "ip", *words], check=True, capture_output=True, text=True).stdout


def _new_boot_id() -> None:
    """Give this boot its own id. ansible.builtin.reboot and the kubelet detect a reboot by it."""
    own = Path("/run/gb10-lab/boot_id")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(f"{uuid.uuid4()}\n")
    subprocess.run(["mount", "--bind", own, "/proc/sys/kernel/random/boot_id"], check=True)


def _show_hidden_mount() -> None:
    """Create a file in place of podman's, which systemd's /run hides.

    The kubelet reads the size of the disk from its first mount, and fails if that mount is hidden (``cannot find
    filesystem info for device``). Podman's hidden file may be the first mount.
    """
    hidden = Path("/run/.containerenv")
    hidden.touch()
    subprocess.run(["mount", "--bind", "/etc/hostname", hidden], check=True)


def _make_login() -> None:
    """At the first boot, set the user's sudo password and give the user its home, which ``podman cp`` gave to root."""
    user, _colon, _password = LOGIN.read_text().partition(":")
    hashes = dict(line.split(":")[:2] for line in Path("/etc/shadow").read_text().splitlines())
    if hashes[user].startswith("!"):
        subprocess.run(["chpasswd"], input=LOGIN.read_text(), text=True, check=True)
        subprocess.run(["chown", "-R", f"{user}:{user}", f"/home/{user}"], check=True)


def main() -> None:
    """Prepare every host for the kubelet, and reset the NIC of a node."""
    # the kubelet's mount propagation needs this; systemd does it on real machines, but not in containers
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    # networkd waits until udev has handled an interface; for interfaces from before the boot there is no kernel event
    subprocess.run(["udevadm", "trigger", "--action=add", "--subsystem-match=net"], check=True)
    _new_boot_id()
    _show_hidden_mount()
    _make_login()
    if KIND.read_text() == "spark":
        # NetworkManager sets the management address at every boot. Docker's installation leaves this policy.
        ip("address", "flush", "dev", MANAGEMENT.read_text())
        subprocess.run(["iptables", "-P", "FORWARD", "DROP"], check=True)
    if not SETTINGS.exists():
        return
    host = json.loads(SETTINGS.read_text())
    links = [link["ifname"] for link in json.loads(ip("-j", "link", "show", switch=True))]
    for index, port in enumerate(host["ports"]):
        for link in links:
            if link.startswith(f"{host['name']}-r{index}v"):
                ip("link", "delete", link, switch=True)
        ip("-4", "address", "flush", "dev", port["pf"])
        ip("-6", "address", "flush", "scope", "global", "dev", port["pf"])
        ip("link", "set", port["pf"], "mtu", "1500", "up")


main()
