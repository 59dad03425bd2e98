# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that netplan's output affects only the named interfaces, for each renderer."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, netplan_files
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

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
        return netplan_files.activate(["enp1s0f0np0"], networkd, self.root)


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
    # Without paths, it would be all devices of the host.
    assert not [command for command in machine.ran if "udevadm trigger" in command]


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
    with netplan_files.generated(files, machine.root) as output:
        found = {path.name: path.read_text() for path in output.rglob("*") if path.is_file()}
    assert found == {"50-site.yaml": "site", "61-new.yaml": "new", "90.yaml": "of a program", "00.yaml": "of a package"}


def test_every_port_is_reconfigured_and_one_without_a_profile_keeps_its_addresses(machine: Machine) -> None:
    machine.active.add("systemd-networkd.service")
    machine.put("sys/class/net/enP2p1s0f0np0/mtu", "9000")
    machine.output = {PORT: "new", PROFILE.replace("enp1s0f0np0", "enP2p1s0f0np0"): "profile"}
    assert netplan_files.activate(["enp1s0f0np0", "enP2p1s0f0np0"], True, machine.root) == []
    assert machine.ran[-1] == "networkctl reconfigure enp1s0f0np0 enP2p1s0f0np0"
    assert [line for line in machine.ran if "flush" in line] == ["ip address flush dev enP2p1s0f0np0"]
    paths = "/sys/class/net/enp1s0f0np0 /sys/class/net/enP2p1s0f0np0"
    assert f"udevadm trigger --settle --action=change {paths}" in machine.ran


@pytest.mark.parametrize("unit", ["systemd-networkd.service", "NetworkManager.service", "network.target"])
def test_a_host_boots_only_while_none_of_these_runs(machine: Machine, unit: str) -> None:
    machine.active = {unit}
    assert not netplan_files.is_booting()
    machine.active = set()
    assert netplan_files.is_booting()


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
    monkeypatch.setattr(netplan_files.os, "chown", lambda path, uid, gid: owners.append((path.name, uid, gid)))
    machine.output = {PORT: "new", netplan_files.UDEV_RULES: "rules"}
    assert machine.activate() == []
    own = (os.getuid(), os.getgid())
    assert owners == [(f".{Path(name).name}.gb10-new", *own) for name in (PORT, netplan_files.UDEV_RULES)]
    assert (machine.root / netplan_files.UDEV_RULES).read_text() == "rules"


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
    assert netplan_files.activate(["enp1s0f0np0", "enP2p1s0f0np0"], False, machine.root) == []
    freed = [line for line in machine.ran if line.startswith("nmcli device set")]
    assert freed == [f"nmcli device set {name} managed yes" for name in ("enp1s0f0np0", "enP2p1s0f0np0")]
    machine.ran.clear()
    assert machine.activate() == []
    assert not [line for line in machine.ran if line.startswith("nmcli device set")]


def test_an_activation_that_cannot_write_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/run/x")

    monkeypatch.setattr(netplan_files, "sync", full)
    assert machine.activate() == ["[Errno 28] No space left on device: '/run/x'"]


def test_new_files_are_not_readable_for_others_while_netplan_reads_them(machine: Machine) -> None:
    with netplan_files.generated({Path("/etc/netplan/61-new.yaml"): "new"}, machine.root) as output:
        assert (output / "etc/netplan/61-new.yaml").stat().st_mode & 0o777 == 0o600


PFS = [
    {"name": "enp1s0f0np0", "address": "10.112.255.1", "prefix": 24,
     "routes": [{"to": "10.123.255.0/24", "via": "10.112.255.2"}]},
    {"name": "enp1s0f1np1", "address": "10.141.255.1", "prefix": 24, "routes": []},
]  # fmt: skip
VFS = [{"netdev": "enp1s0f0v0", "address": "10.112.0.1", "prefix": 24}]
DESIRED = netplan.interfaces(PFS, VFS, 9000)
PORTS = netplan.forwarding(DESIRED)
ROUTES = {interface.name: interface.routes for interface in DESIRED}


def test_pfs_get_addresses_and_routes_and_forward_but_vfs_do_not() -> None:
    ethernets = yaml.safe_load(netplan.render_netplan(DESIRED))["network"]["ethernets"]
    assert ethernets["enp1s0f0np0"]["addresses"] == ["10.112.255.1/24"]
    assert ethernets["enp1s0f0np0"]["routes"] == [{"to": "10.123.255.0/24", "via": "10.112.255.2"}]
    assert "routes" not in ethernets["enp1s0f0v0"]
    assert PORTS == ["enp1s0f0np0", "enp1s0f1np1"]
    forwarding = {key for key in netplan.sysctls(DESIRED) if key.endswith("/forwarding")}
    assert forwarding == {f"net/ipv4/conf/{name}/forwarding" for name in PORTS}


def test_a_route_that_is_not_one_is_refused() -> None:
    bad = {**PFS[0], "routes": [{"to": "default; reboot", "via": "10.112.255.2"}]}
    with pytest.raises(ValueError, match="default; reboot"):
        netplan.interfaces([bad], [], 9000)


def test_the_firewall_is_opened_between_the_ports_only_and_in_a_chain_of_its_own(tmp_path: Path) -> None:
    """Run the unit's own commands with an iptables that only prints."""
    unit, want = netplan_files.files(PORTS).values()
    assert unit
    assert want == "[Unit]\nWants=gb10-transit.service\n"
    program = tmp_path / "iptables"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    commands = {}
    for line in unit.splitlines():
        key, _equals, command = line.partition("=")
        if key in ("ExecStart", "ExecStop"):
            script = command.removeprefix("-").removeprefix("/bin/sh -c '").removesuffix("'")
            done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True,
                                  env={"PATH": str(tmp_path)})  # fmt: skip
            commands[key] = done.stdout.splitlines()
    closed = ["-w -D FORWARD -j GB10-TRANSIT", "-w -F GB10-TRANSIT", "-w -X GB10-TRANSIT"]
    assert commands["ExecStop"] == closed
    assert commands["ExecStart"] == [
        *closed,
        "-w -N GB10-TRANSIT",
        "-w -A GB10-TRANSIT -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT",
        "-w -A GB10-TRANSIT -i enp1s0f1np1 -o enp1s0f0np0 -j ACCEPT",
        "-w -I FORWARD -j GB10-TRANSIT",
    ]


def test_a_host_without_iptables_has_nothing_to_open(tmp_path: Path) -> None:
    script = next(line for line in netplan_files.render(PORTS).splitlines() if line.startswith("ExecStart="))
    shell = script.removeprefix("ExecStart=/bin/sh -c '").removesuffix("'")
    done = subprocess.run(["/bin/sh", "-c", shell], check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host whose commands are recorded; ``active`` is the unit, ``routes`` and ``rule`` what is live."""
    state: dict[str, Any] = {"ran": [], "active": False, "routes": [], "rule": False}

    def run(argv: Sequence[str], check: bool = True, **_options: Any) -> subprocess.CompletedProcess[str]:
        state["ran"].append(" ".join(argv))
        assert check is (argv[0] != "iptables")
        return subprocess.CompletedProcess(argv, int(argv[0] == "iptables" and not state["rule"]), "", "")

    monkeypatch.setattr(netplan_files, "UNIT", tmp_path / "gb10-transit.service")
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda _argv: state["routes"])
    monkeypatch.setattr(system, "is_active", lambda _unit: state["active"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    return state


def test_the_unit_follows_its_file(host: dict[str, Any]) -> None:
    netplan_files.sync()
    assert host["ran"] == []
    netplan_files.UNIT.write_text("")
    netplan_files.sync()
    assert host["ran"] == ["systemctl daemon-reload", "systemctl restart gb10-transit.service"]
    netplan_files.UNIT.unlink()
    host.update(active=True, ran=[])
    netplan_files.sync()
    assert host["ran"] == ["systemctl stop gb10-transit.service", "systemctl daemon-reload"]


def test_files_are_removed_only_where_they_exist(host: dict[str, Any]) -> None:
    assert netplan_files.files([]) == {}
    netplan_files.UNIT.write_text("")
    assert list(netplan_files.files([]).values()) == [None, None]


def test_a_lost_route_or_rule_is_a_deviation(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert netplan_files.deviations(ROUTES, PORTS) == [
        "route: 10.123.255.0/24 via 10.112.255.2 is missing",
        "firewall: FORWARD lacks the chain GB10-TRANSIT",
    ]
    host.update(routes=[{"dst": "10.123.255.0/24", "gateway": "10.112.255.2"}], rule=True)
    assert netplan_files.deviations(ROUTES, PORTS) == []
    host["rule"] = False
    assert netplan_files.deviations({"enp1s0f0np0": ()}, []) == []
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert netplan_files.deviations({}, PORTS) == []
    both = [("10.1.0.0/24", "10.0.0.1"), ("10.2.0.0/24", "10.0.0.1")]
    host["routes"] = [{"dst": "10.9.0.0/24"}, {"dst": "10.1.0.0/24", "gateway": "10.0.0.1"}]
    missing = "route: 10.2.0.0/24 via 10.0.0.1 is missing"
    assert netplan_files.deviations({"a": both, "b": both}, []) == [missing] * 2
