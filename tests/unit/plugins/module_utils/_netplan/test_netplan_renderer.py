# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that netplan's output affects only the named interfaces, for each renderer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._netplan import renderer

PORT, MANAGEMENT = (f"run/systemd/network/10-netplan-{name}.network" for name in ("enp1s0f0np0", "mgmt0"))
PROFILE = "run/NetworkManager/system-connections/netplan-enp1s0f0np0.nmconnection"


class Machine:
    """A host's root, the units that run on it, and what ``netplan generate`` would write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ran: list[str] = []
        self.active = {"NetworkManager.service", "network.target"}
        self.output: dict[str, str] = {}
        self.refuses = self.fails = ""
        (root / "run").mkdir()
        (root / "sys/class/net/enp1s0f0np0").mkdir(parents=True)

    def run(self, argv: Sequence[str], *, check: bool = True, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        if argv[:2] == ["systemctl", "is-active"]:
            return subprocess.CompletedProcess(argv, 0 if argv[-1] in self.active else 3, "", "")
        self.ran.append(" ".join(argv))
        if self.fails and self.fails in self.ran[-1]:
            if check:
                raise system.HostError(f"{self.ran[-1]}: failed")
            return subprocess.CompletedProcess(argv, 1, "", "")
        if argv[0] == "netplan" and "--root-dir" in argv:
            if self.refuses:
                raise system.HostError(f"{argv[-1]}/etc/netplan/90-NM-1.yaml: {self.refuses}")
            for name, text in self.output.items():
                self.put(name, text, Path(argv[-1]))
        return subprocess.CompletedProcess(argv, 0, "", "")

    def put(self, name: str, text: str, root: Path | None = None) -> None:
        path = (root or self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def activate(self, networkd: bool = True) -> list[str]:
        return renderer.activate(["enp1s0f0np0"], networkd, self.root)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(system, "run", made.run)
    return made


def test_only_files_of_the_named_interfaces_are_taken_and_networkd_is_started(machine: Machine) -> None:
    machine.put(MANAGEMENT, "old")
    machine.put(PROFILE, "old")
    machine.output = {MANAGEMENT: "new", PORT: "new"}
    assert machine.activate() == []
    assert (machine.root / MANAGEMENT).read_text() == "old"
    assert (machine.root / PORT).read_text() == "new"
    assert not (machine.root / PROFILE).exists()
    assert "systemctl start systemd-networkd.service" in machine.ran
    assert "nmcli general reload conf" in machine.ran
    assert not [command for command in machine.ran if "reconfigure" in command or "netplan apply" in command]


def test_a_running_networkd_reconfigures_only_the_named_interfaces(machine: Machine) -> None:
    machine.active = {"systemd-networkd.service", "network.target"}
    machine.output = {PORT: "new"}
    assert machine.activate() == []
    assert machine.ran[-2:] == ["networkctl reload", "networkctl reconfigure enp1s0f0np0"]
    assert not [command for command in machine.ran if command.startswith("nmcli")]


def test_a_host_that_lost_its_ports_can_still_go_back(machine: Machine) -> None:
    machine.active = {"systemd-networkd.service", "network.target"}
    (machine.root / "sys/class/net/enp1s0f0np0").rmdir()
    assert machine.activate() == []
    assert machine.ran[-1] == "networkctl reload"


def test_going_back_to_network_manager_stops_networkd_and_frees_the_port(machine: Machine) -> None:
    machine.active.add("systemd-networkd.service")
    machine.put(PORT, "old")
    machine.output = {PROFILE: "profile"}
    assert machine.activate(networkd=False) == []
    assert not (machine.root / PORT).exists()
    assert (machine.root / PROFILE).read_text() == "profile"
    assert "ip address flush dev enp1s0f0np0" in machine.ran
    assert machine.ran[-2:] == [
        "nmcli device set enp1s0f0np0 managed yes",
        "systemctl stop systemd-networkd.socket systemd-networkd.service",
    ]


def test_at_boot_generating_is_enough(machine: Machine) -> None:
    machine.active = set()
    assert machine.activate() == []
    assert machine.ran == ["netplan generate"]


def test_a_refusal_names_the_hosts_own_file_and_leaves_everything(machine: Machine) -> None:
    machine.put(PORT, "old")
    machine.refuses = "unknown key 'uuid'"
    assert machine.activate() == ["/etc/netplan/90-NM-1.yaml: unknown key 'uuid'"]
    assert (machine.root / PORT).read_text() == "old"
    assert not list((machine.root / "run").glob("gb10-netplan-*"))


def test_new_content_is_read_in_place_of_the_hosts_own(machine: Machine) -> None:
    machine.put("etc/netplan/60-gb10-fabric.yaml", "old")
    machine.put("etc/netplan/50-site.yaml", "site")
    files = {Path("/etc/netplan/60-gb10-fabric.yaml"): None, Path("/etc/netplan/61-new.yaml"): "new"}
    files[Path("/etc/sysctl.d/60.conf")] = "no file of netplan"
    machine.put("run/netplan/90.yaml", "of a program")
    machine.put("lib/netplan/00.yaml", "of a package")
    with renderer.generated(files, machine.root) as output:
        found = {path.name: path.read_text() for path in output.rglob("*") if path.is_file()}
    assert found == {"50-site.yaml": "site", "61-new.yaml": "new", "90.yaml": "of a program", "00.yaml": "of a package"}


def test_every_port_is_reconfigured_and_one_without_a_profile_keeps_its_addresses(machine: Machine) -> None:
    machine.active.add("systemd-networkd.service")
    machine.put("sys/class/net/enP2p1s0f0np0/mtu", "9000")
    machine.output = {PORT: "new", PROFILE.replace("enp1s0f0np0", "enP2p1s0f0np0"): "profile"}
    assert renderer.activate(["enp1s0f0np0", "enP2p1s0f0np0"], True, machine.root) == []
    assert machine.ran[-1] == "networkctl reconfigure enp1s0f0np0 enP2p1s0f0np0"
    assert [line for line in machine.ran if "flush" in line] == ["ip address flush dev enP2p1s0f0np0"]
    paths = "/sys/class/net/enp1s0f0np0 /sys/class/net/enP2p1s0f0np0"
    assert f"udevadm trigger --settle --action=change {paths}" in machine.ran


@pytest.mark.parametrize("unit", ["systemd-networkd.service", "NetworkManager.service", "network.target"])
def test_a_host_boots_only_while_none_of_these_runs(machine: Machine, unit: str) -> None:
    machine.active = {unit}
    assert not renderer.is_booting()
    machine.active = set()
    assert renderer.is_booting()


def test_a_generated_file_keeps_its_mode_and_replaces_only_another_content(machine: Machine) -> None:
    """systemd-networkd, an ordinary user, could not read the file."""
    machine.output = {PORT: "new"}
    machine.activate()
    assert (machine.root / PORT).stat().st_mode & 0o777 == 0o644
    inode = (machine.root / PORT).stat().st_ino
    machine.activate()
    assert (machine.root / PORT).stat().st_ino == inode
    machine.output = {PORT: "newer"}
    machine.activate()
    assert (machine.root / PORT).read_text() == "newer"


def test_generated_files_keep_their_owner(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = []
    monkeypatch.setattr(renderer.os, "chown", lambda path, uid, gid: owners.append((path.name, uid, gid)))
    machine.output = {PORT: "new", renderer.UDEV_RULES: "rules"}
    assert machine.activate() == []
    own = (os.getuid(), os.getgid())
    assert owners == [(f".{Path(name).name}.gb10-new", *own) for name in (PORT, renderer.UDEV_RULES)]
    assert (machine.root / renderer.UDEV_RULES).read_text() == "rules"


@pytest.mark.parametrize(
    ("fails", "networkd", "said"),
    [
        ("ip address flush", True, []),
        ("udevadm trigger", True, []),
        ("nmcli device set", False, []),
        ("udevadm control", True, ["udevadm control --reload: failed"]),
        ("systemctl start", True, ["systemctl start systemd-networkd.service: failed"]),
    ],
)
def test_which_commands_may_fail(machine: Machine, fails: str, networkd: bool, said: list[str]) -> None:
    machine.fails = fails
    machine.output = {PROFILE: "profile"}
    assert machine.activate(networkd) == said


def test_network_manager_keeps_what_networkd_takes(machine: Machine) -> None:
    machine.put("sys/class/net/enP2p1s0f0np0/mtu", "9000")
    assert renderer.activate(["enp1s0f0np0", "enP2p1s0f0np0"], False, machine.root) == []
    freed = [line for line in machine.ran if line.startswith("nmcli device set")]
    assert freed == [f"nmcli device set {name} managed yes" for name in ("enp1s0f0np0", "enP2p1s0f0np0")]
    machine.ran.clear()
    assert machine.activate() == []
    assert not [line for line in machine.ran if line.startswith("nmcli device set")]


def test_an_activation_that_cannot_write_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/run/x")

    monkeypatch.setattr(renderer.transit, "sync", full)
    assert machine.activate() == ["[Errno 28] No space left on device: '/run/x'"]


def test_new_files_are_not_readable_for_others_while_netplan_reads_them(machine: Machine) -> None:
    with renderer.generated({Path("/etc/netplan/61-new.yaml"): "new"}, machine.root) as output:
        assert (output / "etc/netplan/61-new.yaml").stat().st_mode & 0o777 == 0o600
