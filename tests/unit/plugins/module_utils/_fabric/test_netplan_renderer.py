# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what an activation of netplan's files runs and changes, and test the firewall of ports with transit."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan_files
from ansible_collections.gb10.cluster.plugins.module_utils._host import system

PORT, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
NETWORK, MANAGEMENT = (f"run/systemd/network/10-netplan-{name}.network" for name in (PORT, "mgmt0"))
PROFILE, PROFILE2 = (f"run/NetworkManager/system-connections/netplan-{name}.nmconnection" for name in (PORT, SECOND))
MANAGER, NETWORKD = "NetworkManager.service", "systemd-networkd.service"


class Machine:
    """A host's root, the units that run on it, and what ``netplan generate`` would write."""

    def __init__(self, root: Path, case: Mapping[str, Any]) -> None:
        self.root = root
        self.ran: list[str] = []
        self.active = set(case.get("active", (MANAGER, "network.target")))
        self.output: Mapping[str, str] = case.get("output", {})
        self.fails: str = case.get("fails", "")
        (root / "run").mkdir(parents=True)
        for name in case.get("ports", [PORT]):
            (root / "sys/class/net" / name).mkdir(parents=True)
        for name, text in case.get("files", {}).items():
            self.put(name, text, root)

    def run(self, argv: Sequence[str], *, check: bool = True, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        text = " ".join(argv)
        if argv[:2] == ["systemctl", "is-active"]:
            return subprocess.CompletedProcess(argv, 0 if argv[-1] in self.active else 3, "", "")
        self.ran.append(text.replace(argv[-1], "TEMPORARY") if "--root-dir" in argv else text)
        failed = bool(self.fails) and self.fails in text
        if failed and check:
            where = f"{argv[-1]}/etc/netplan/90-NM-1.yaml: " if "--root-dir" in argv else ""
            raise system.HostError(f"{where}{text}: refused")
        for name, content in self.output.items() if "--root-dir" in argv else ():
            self.put(name, content, Path(argv[-1]))
        return subprocess.CompletedProcess(argv, int(failed), "", "")

    def chown(self, path: Path, uid: int, gid: int) -> None:
        assert (uid, gid) == (os.getuid(), os.getgid())
        self.ran.append(f"chown {path.name}")

    @staticmethod
    def put(name: str, text: str, root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o640)

    def files(self) -> dict[str, str]:
        paths = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        return {
            str(path.relative_to(self.root)): f"{path.stat().st_mode & 0o777:o} {path.read_text()}" for path in paths
        }

    def activate(self, names: Sequence[str] = (PORT,), networkd: bool = True) -> list[str]:
        """Return the commands, the differences of the files, and what was told."""
        before, self.ran = self.files(), []
        told = netplan_files.activate(names, networkd, self.root)
        now = self.files()
        changes = [f"+ {path}: {now[path]}" for path in now if now[path] != before.get(path)]
        return [f"$ {line}" for line in self.ran] + changes + [f"- {path}" for path in before if path not in now] + told


CASES: dict[str, dict[str, Any]] = {
    "only files of the named interfaces": {
        "files": {MANAGEMENT: "old", PROFILE: "old"},
        "output": {MANAGEMENT: "new", NETWORK: "new", netplan_files.UDEV_RULES: "rules"},
    },
    "a running networkd": {"active": (NETWORKD,), "output": {NETWORK: "new"}},
    "a host that lost its ports": {"active": (NETWORKD,), "ports": []},
    "back to NetworkManager": {
        "active": (NETWORKD, MANAGER),
        "files": {NETWORK: "old"},
        "output": {PROFILE: "profile"},
        "networkd": False,
    },
    "two ports": {
        "active": (NETWORKD, MANAGER),
        "ports": [PORT, SECOND],
        "output": {NETWORK: "new", PROFILE2: "profile"},
        "names": (PORT, SECOND),
    },
    "two ports for NetworkManager": {"ports": [PORT, SECOND], "names": (PORT, SECOND), "networkd": False},
    "a port without NetworkManager": {"active": ("network.target",), "networkd": False},
    "at boot": {"active": ()},
    "same content": {"files": {NETWORK: "new"}, "output": {NETWORK: "new"}},
    "other content": {"files": {NETWORK: "old"}, "output": {NETWORK: "new"}},
    **{
        f"refused: {fails}": {"fails": fails, "output": {PROFILE: "new"}, "networkd": "nmcli" not in fails}
        for fails in ("generate", "ip address", "udevadm trigger", "nmcli device", "udevadm control", "systemctl start")
    },
}


def test_an_activation_runs_and_changes_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for number, (name, case) in enumerate(CASES.items()):
        machine = Machine(tmp_path / str(number), case)
        monkeypatch.setattr(system, "run", machine.run)
        monkeypatch.setattr(netplan_files.os, "chown", machine.chown)
        found[name] = machine.activate(case.get("names", (PORT,)), case.get("networkd", True))
        assert not list((machine.root / "run").glob("gb10-netplan-*"))
    for active in ([], [NETWORKD], [MANAGER], ["network.target"], ["other"]):
        machine.active = set(active)
        found["boots while"] = [*found.get("boots while", []), f"{active}: {netplan_files.is_booting()}"]

    def full() -> None:
        raise OSError(28, "No space left on device", "/run/x")

    monkeypatch.setattr(netplan_files, "sync", full)
    found["no space"] = machine.activate()
    stored.compare("netplan_activated", found)


def test_new_content_is_read_in_place_of_the_hosts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("etc/netplan/60-gb10.yaml", "etc/netplan/50-site.yaml", "run/netplan/90.yaml", "lib/netplan/00.yaml")
    machine = Machine(tmp_path / "root", {"files": {name: name[:3] for name in names}})
    monkeypatch.setattr(system, "run", machine.run)
    files = {"netplan/60-gb10.yaml": None, "netplan/61-new.yaml": "new", "sysctl.d/60.conf": "no file of netplan"}
    with netplan_files.generated({Path("/etc", name): text for name, text in files.items()}, machine.root) as output:
        found = {path.name: path.read_text() for path in output.rglob("*") if path.is_file()}
        assert (output / "etc/netplan/61-new.yaml").stat().st_mode & 0o777 == 0o600
    assert found == {"50-site.yaml": "etc", "61-new.yaml": "new", "90.yaml": "run", "00.yaml": "lib"}


PORTS = ["enp1s0f0np0", "enp1s0f1np1"]
ROUTES = {PORTS[0]: [("10.123.255.0/24", "10.112.255.2")], PORTS[1]: ()}


def test_the_firewall_is_opened_between_the_ports_only_and_in_a_chain_of_its_own(tmp_path: Path) -> None:
    """Run the unit's own commands with an iptables that only prints, and where there is none."""
    unit, want = netplan_files.files(PORTS).values()
    assert unit
    assert want == "[Unit]\nWants=gb10-transit.service\n"
    lines = dict(line.partition("=")[::2] for line in unit.splitlines())

    def run(key: str) -> list[str]:
        script = lines[key].removeprefix("-").removeprefix("/bin/sh -c '").removesuffix("'")
        done = subprocess.run(
            ["/bin/sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": str(tmp_path)}
        )
        return done.stdout.splitlines()

    assert run("ExecStart") == []
    program = tmp_path / "iptables"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    closed = ["-w -D FORWARD -j GB10-TRANSIT", "-w -F GB10-TRANSIT", "-w -X GB10-TRANSIT"]
    assert run("ExecStop") == closed
    assert run("ExecStart") == [
        *closed,
        "-w -N GB10-TRANSIT",
        "-w -A GB10-TRANSIT -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT",
        "-w -A GB10-TRANSIT -i enp1s0f1np1 -o enp1s0f0np0 -j ACCEPT",
        "-w -I FORWARD -j GB10-TRANSIT",
    ]


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


def test_the_unit_follows_its_file_and_files_are_removed_only_where_they_exist(host: dict[str, Any]) -> None:
    assert netplan_files.files([]) == {}
    netplan_files.sync()
    assert host["ran"] == []
    netplan_files.UNIT.write_text("")
    assert list(netplan_files.files([]).values()) == [None, None]
    netplan_files.sync()
    assert host["ran"] == ["systemctl daemon-reload", "systemctl restart gb10-transit.service"]
    netplan_files.UNIT.unlink()
    host.update(active=True, ran=[])
    netplan_files.sync()
    assert host["ran"] == ["systemctl stop gb10-transit.service", "systemctl daemon-reload"]


def test_a_lost_route_or_rule_is_a_deviation(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    route, rule = "route: 10.123.255.0/24 via 10.112.255.2 is missing", "firewall: FORWARD lacks the chain GB10-TRANSIT"
    assert netplan_files.deviations(ROUTES, PORTS) == [route, rule]
    both = [*ROUTES[PORTS[0]], ("10.2.0.0/24", "10.0.0.1")]
    host.update(routes=[{"dst": "10.9.0.0/24"}, {"dst": "10.2.0.0/24", "gateway": "10.0.0.1"}], rule=True)
    assert netplan_files.deviations({"a": both, "b": both, "c": ()}, PORTS) == [route] * 2
    host["rule"] = False
    assert netplan_files.deviations({PORTS[0]: ()}, []) == []
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert netplan_files.deviations({}, PORTS) == []
