# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module's main() with a simulated host that applies the written files."""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, netplan_files, netplan_undo
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.modules import netplan_transaction
from module_runs import Step, run_module, steps_of

PLAN = {"pfs": [{"name": "enp1s0f0np0"}], "vfs": [{"netdev": "enp1s0f0v0", "address": "10.100.0.1", "prefix": 24}]}


class Host:
    """Simulated interfaces that get the MTU and addresses of the netplan file when it is applied."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory, self.hides = directory, "(?<=T000000-)[0-9a-f]{4}"
        self.netplan, self.sysctl = directory / "etc/60-fabric.yaml", directory / "etc/60-fabric.conf"
        self.netplan.parent.mkdir()
        self.options = {**PLAN, "netplan_path": str(self.netplan), "sysctl_path": str(self.sysctl)}
        self.options |= {"settle_timeout": 0, "check_gids": False}
        self.last, self.in_full = dict[str, Any](), False
        self.patch, self.follows, self.loses, self.holding = patch, True, False, True
        self.gateways: list[tuple[str, ...]] = []
        self.lookups, self.slow, self.accepts = list[str](), 0, 0
        self.meanwhile: Callable[[], object] | None = None
        self.refusal: system.HostError | None = None
        self.others = ["address 10.99.0.11/24 of mgmt0"]
        self.ports: dict[str, dict[str, Any]] = {"enp1s0f0np0": port(1500), "enp1s0f0v0": port(1500)}
        made = netplan_undo.State

        def state() -> netplan_undo.State:
            found = made(directory / "state")
            found.lock_path = directory / "lock"
            places = {"units": directory / "units", "library": directory / "library"}
            found.unit = host_unit.HostUnit(**{**found.unit.__dict__, **places})
            return found

        patch.setattr(netplan_undo, "State", state)
        patch.setattr(netplan_undo, "SETTLE_S", 0)
        patch.setattr(netplan, "SETTLE_S", 0)
        patch.setattr(netplan.time, "strftime", lambda *_words: "20260101T000000")
        # Changes are sorted by their time in seconds and this text. The test makes two changes in one second.
        numbers = itertools.count()
        patch.setattr(netplan.secrets, "token_hex", lambda _size: f"{next(numbers):04x}")
        patch.setattr(netplan, "PROC_SYS", directory / "proc")
        patch.setattr(netplan_undo, "PROC_SYS", directory / "proc")
        patch.setattr(system, "run", self.run)
        patch.setattr(system, "links", self.links)
        patch.setattr(system, "root_remedy", lambda: "Set become.")
        patch.setattr(netplan_files, "activate", self.activate)
        patch.setattr(netplan_files, "netplan_files", lambda *_root: sorted(self.netplan.parent.glob("*.yaml")))
        patch.setattr(netplan_files, "is_booting", lambda: False)
        patch.setattr(netplan_files, "NM_DROP_IN", directory / "etc/nm.conf")
        patch.setattr(netplan_files, "NETWORKD_DROP_IN", directory / "networkd.conf.d/60-fabric.conf")
        patch.setattr(netplan_files, "default_routes", lambda: [{"dev": "mgmt0", "gateway": "10.99.0.1"}])
        patch.setattr(netplan_files, "observe", lambda fabric: tuple(self.others))
        patch.setattr(netplan_files, "answering_gateways", lambda: self.gateways.pop(0) if self.gateways else ())
        patch.setattr(netplan.netns, "holders", self.holders)
        patch.setattr(
            netplan.netns, "holder_of", lambda name, _mac, _ip, spaces: self.holding and f"{spaces[0]} of {name}"
        )

    def links(self, netns: object = None) -> dict[str, dict[str, Any]]:
        found = {**self.ports, "mgmt0": port(1500, ("10.99.0.11", "24"))}
        if self.slow and self.netplan.exists():
            self.slow -= 1
            return found | {"enp1s0f0v0": port(9000)}
        return found

    def holders(self) -> list[str]:
        self.lookups.append("looked")
        return ["space"]

    def run(self, argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        if self.refusal and argv[0] == "netplan":
            self.accepts -= 1
            if self.accepts < 0:
                raise self.refusal
        if argv[:3] == ["ip", "address", "del"]:
            self.ports[argv[-1]]["addr_info"] = []
        if argv[:3] == ["ip", "link", "set"] and "mtu" in argv:
            self.ports[argv[4]]["mtu"] = int(argv[-1])
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    def activate(self, names: Collection[str], _networkd: bool) -> list[str]:
        if self.meanwhile:
            ask, self.meanwhile = self.meanwhile, None
            ask()
        text = self.netplan.read_text() if self.netplan.exists() else ""
        if self.follows and text:
            parts = text.split("renderer")[1:]
            self.ports |= dict.fromkeys(list(names)[len(parts) :], port(1500))
            for name, part in zip(names, parts, strict=False):
                mtu, addresses = re.search(r"mtu: (\d+)", part), re.findall(r"- (\S+)/(\d+)", part)
                assert mtu
                self.ports[name] = port(int(mtu[1]), *addresses)
        self.others = [] if self.loses else self.others
        return []

    def shows(self) -> dict[str, Any]:
        etc = [*self.netplan.parent.iterdir(), *self.directory.glob("networkd.conf.d/*"), *self.directory.glob("state")]
        modes = {path: "" if path.is_dir() else f"{path.lstat().st_mode & 0o7777:o}" for path in sorted(etc)}
        ports = {name: [one["mtu"], *[each["local"] for each in one["addr_info"]]] for name, one in self.ports.items()}
        files = [f"{path.name} {path.readlink() if path.is_symlink() else mode}" for path, mode in modes.items()]
        kernel = [f"{key.name} {key.read_text()}" for key in sorted(self.directory.glob("proc/net/ipv4/conf/*/*"))]
        first = self.netplan.read_text().splitlines()[-1:] if self.netplan.exists() else []
        past = [f"{name} {link}" for each in netplan_undo.State().manifests() for name, link in each.links.items()]
        return {
            "ports": ports,
            "files": files,
            "kernel": kernel,
            "last line": first,
            "links before": past,
            "looked for holders": len(self.lookups),
            "diff": self.last.get("diff", {"prepared": ""})["prepared"].splitlines() if self.in_full else "",
        }


def port(mtu: int, *addresses: tuple[str, str]) -> dict[str, Any]:
    found = [{"local": local, "prefixlen": int(prefix), "scope": "global"} for local, prefix in addresses]
    return {"mtu": mtu, "operstate": "UP", "flags": ["UP"], "addr_info": found}


def confirm(_host: Host) -> dict[str, str]:
    pending = netplan_undo.load(netplan_undo.State().pending)
    return {"state": "confirmed", "transaction": pending.id if pending else "none"}


def lose_vf(host: Host) -> None:
    del host.ports["enp1s0f0v0"]


def have_sysctl(host: Host) -> None:
    for name in ("enp1s0f0np0/rp_filter", "enp1s0f0v0/arp_ignore", "enp1s0f0v0/arp_announce"):
        (key := host.directory / "proc/net/ipv4/conf" / name).parent.mkdir(parents=True, exist_ok=True)
        key.write_text("0")


def have_own_files(host: Host) -> None:
    """A file that other users had to read got mode 0600."""
    host.netplan.write_text("network: {}\n")
    host.netplan.chmod(0o640)
    host.sysctl.symlink_to("nothing")


def fails(step: str, error: Exception | str, of: Any = netplan) -> Step:
    """Let a step of a change raise an error, or return a complaint."""

    def failing(*_words: object) -> list[str]:
        if isinstance(error, Exception):
            raise error
        return [error]

    return lambda host: host.patch.setattr(of, step, failing)


def settle_late(host: Host) -> None:
    """Let the address of the VF come when the host is looked at for the third time after a change."""
    host.slow = 3
    host.patch.setattr(system.time, "sleep", lambda _seconds: None)


REFUSED = system.HostError("/etc/netplan/90-NM-1.yaml:3:5: Error in network definition")
SLOW = system.NoAnswer("netplan generate: no answer within 120 s")
CHECKED, BACK, RESET = ({"state": state} for state in ("checked", "restored", "absent"))
VF = {"netdev": "enp1s0f1v0", "address": "10.101.0.1", "prefix": 24}
MANAGEMENT = {"pfs": [{"name": "mgmt0"}]}
CASES: dict[str, list[Step]] = {
    "apply, confirm, and nothing is left to do": [
        CHECKED,
        {"in_full": True},
        CHECKED,
        confirm,
        {},
        CHECKED,
        lambda host: host.ports["enp1s0f0v0"].update(addr_info=[]),
        CHECKED,
    ],
    "an interface leaves the plan": [{}, confirm, {"vfs": [], "in_full": True}, {"in_full": False, **CHECKED}, confirm],
    "check mode": [{"check": True}, {**RESET, "check": True}, {}, {"check": True}],
    "a check fails": [{"follows": False}, {"follows": True}],
    "another interface loses its address": [{"loses": True}],
    "netplan refuses the host's files": [{"refusal": REFUSED}, CHECKED],
    "netplan refuses the new files": [{"refusal": REFUSED, "accepts": 1}],
    "netplan does not end": [{"refusal": SLOW}],
    "management": [MANAGEMENT, {**MANAGEMENT, **CHECKED}],
    "no plan": [{"vfs": [{"netdev": "x"}]}],
    "reset": [{}, confirm, {"mtu": 8000}, confirm, {**RESET, "check": True}, RESET, confirm, RESET],
    "restore": [{}, confirm, {"mtu": 8000}, confirm, BACK, confirm],
    "reset after three changes": [
        *(
            have_own_files,
            have_sysctl,
            {},
            confirm,
            lambda host: shutil.rmtree(host.directory / "networkd.conf.d"),
            {"vfs": []},
            confirm,
            {"mtu": 8000},
            confirm,
        ),
        *(RESET, confirm),
    ],
    "reset without a directory": [
        *({}, confirm, lambda host: shutil.rmtree(host.directory / "networkd.conf.d"), RESET, confirm)
    ],
    "unconfirmed": [{}, {"mtu": 8000, "check": True}, {"mtu": 8000}],
    "own files": [have_own_files, {}, confirm, BACK, confirm],
    "no right to write": [fails("execute", PermissionError(13, "Permission denied", "/usr/local/lib/gb10")), {}],
    **{
        f"{step} fails: {error}": [lambda host: setattr(host, "follows", False), fails(step, error), {}]
        for step in ("switch", "undo")
        for error in (system.HostError("refused"), OSError(5, "broken"))
    },
    "NetworkManager complains": [fails("activate", "activate failed", netplan_files), {}],
    "the old state complains": [fails("restore_runtime", "restore failed"), {}],
    "a directory can't be made": [lambda host: (host.directory / "networkd.conf.d").write_text(""), {}],
    "a slow host": [settle_late, {"settle_timeout": 20}],
    "nobody looks for holders": [{**CHECKED, "holding": False}],
    "a gateway is silent": [{"gateways": [("10.99.0.1", "fe80::1"), ("fe80::1",)]}],
    "held by pods": [lose_vf, CHECKED, {**CHECKED, "vfs": [*PLAN["vfs"], VF]}],
    "a VF does not exist yet": [lose_vf, {**CHECKED, "holding": False}, {"check": True}, {}],
    "sysctls": [have_sysctl, {}, confirm, BACK, confirm],
}
test_each_step_of_a_transaction = steps_of(netplan_transaction=(netplan_transaction, Host, CASES))


def test_a_second_run_at_the_same_time_is_refused_and_takes_nothing_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second run deleted the record, the old files and the unit of the first, whose undo was lost."""

    def call(**options: Any) -> dict[str, Any]:
        return dict(run_module(netplan_transaction, capsys, **host.options | options)[1])

    host, said = Host(tmp_path, monkeypatch), list[dict[str, Any]]()
    host.meanwhile = lambda: said.append(call(mtu=8000))
    applied = call()
    assert "Another process changes this host's network now" in said[0]["msg"]
    assert f"process {os.getpid()} (state applied, user" in said[0]["msg"]
    assert call(state="confirmed", transaction=applied["transaction"])["changed"]
    assert host.ports["enp1s0f0v0"]["mtu"] == 9000
