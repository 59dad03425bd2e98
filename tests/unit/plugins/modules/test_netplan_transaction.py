# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module's main() with a simulated host that applies the written files."""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, netplan_files, netplan_undo
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan_files as others
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.modules import netplan_transaction

PLAN = {"pfs": [{"name": "enp1s0f0np0"}], "vfs": [{"netdev": "enp1s0f0v0", "address": "10.100.0.1", "prefix": 24}]}


class Host:
    """Simulated interfaces that get the MTU and addresses of the netplan file when it is applied."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.netplan, self.sysctl = directory / "etc/60-fabric.yaml", directory / "etc/60-fabric.conf"
        self.follows, self.loses = True, ""
        self.refusals: list[system.HostError] = []
        self.others = ["address 10.99.0.11/24 of mgmt0"]
        self.ports: dict[str, dict[str, Any]] = {"enp1s0f0np0": port(1500), "enp1s0f0v0": port(1500)}

    def run(self, argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        for refusal in self.refusals if argv[0] == "netplan" else ():
            raise refusal
        if argv[:3] == ["ip", "address", "del"]:
            self.ports[argv[-1]]["addr_info"] = []
        if argv[:3] == ["ip", "link", "set"] and "mtu" in argv:
            self.ports[argv[4]]["mtu"] = int(argv[-1])
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    def activate(self, names: Collection[str], _networkd: bool) -> list[str]:
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

    def call(self, check_mode: bool = False, **params: Any) -> dict[str, Any]:
        paths = {"netplan_path": str(self.netplan), "sysctl_path": str(self.sysctl), "settle_timeout": 0}
        arguments = {**PLAN, **paths, "check_gids": False, **params, "_ansible_check_mode": check_mode}
        with patch_module_args(arguments), pytest.raises(Stopped) as stopped:
            netplan_transaction.main()
        return stopped.value.result


def port(mtu: int, *addresses: tuple[str, str]) -> dict[str, Any]:
    found = [{"local": local, "prefixlen": int(prefix), "scope": "global"} for local, prefix in addresses]
    return {"mtu": mtu, "operstate": "UP", "flags": ["UP"], "addr_info": found}


class Stopped(Exception):
    """The end of a module, with its result."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(json.dumps(result))
        self.result = result


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    made.netplan.parent.mkdir()

    def stop(module: basic.AnsibleModule, **result: Any) -> None:
        raise Stopped(result)

    def fail(module: basic.AnsibleModule, **result: Any) -> None:
        raise Stopped({**result, "failed": True})

    original = netplan_undo.State

    def state() -> netplan_undo.State:
        found = original(tmp_path / "state")
        found.lock_path = tmp_path / "lock"
        places = {"units": tmp_path / "units", "library": tmp_path / "library"}
        found.unit = host_unit.HostUnit(**{**found.unit.__dict__, **places})
        return found

    monkeypatch.setattr(basic.AnsibleModule, "exit_json", stop)
    monkeypatch.setattr(basic.AnsibleModule, "fail_json", fail)
    monkeypatch.setattr(netplan_undo, "State", state)
    monkeypatch.setattr(netplan_undo, "SETTLE_S", 0)
    monkeypatch.setattr(netplan, "SETTLE_S", 0)
    # Changes are sorted by their time in seconds and this text. The test makes two changes in one second.
    numbers = itertools.count()
    monkeypatch.setattr(netplan.secrets, "token_hex", lambda _size: f"{next(numbers):04x}")
    monkeypatch.setattr(netplan, "PROC_SYS", tmp_path / "proc")
    monkeypatch.setattr(netplan_undo, "PROC_SYS", tmp_path / "proc")
    monkeypatch.setattr(system, "run", made.run)
    monkeypatch.setattr(system, "links", lambda netns=None: {**made.ports, "mgmt0": port(1500, ("10.99.0.11", "24"))})
    monkeypatch.setattr(netplan_files, "activate", made.activate)
    monkeypatch.setattr(netplan_files, "netplan_files", lambda *_root: sorted(made.netplan.parent.glob("*.yaml")))
    monkeypatch.setattr(netplan_files, "is_booting", lambda: False)
    monkeypatch.setattr(netplan_files, "NM_DROP_IN", tmp_path / "etc/nm.conf")
    monkeypatch.setattr(netplan_files, "NETWORKD_DROP_IN", tmp_path / "networkd.conf.d/60-fabric.conf")
    monkeypatch.setattr(others, "default_routes", lambda: [{"dev": "mgmt0", "gateway": "10.99.0.1"}])
    monkeypatch.setattr(others, "observe", lambda fabric: tuple(made.others))
    return made


def test_a_change_is_applied_confirmed_and_then_nothing_is_left_to_do(host: Host) -> None:
    assert not host.call(state="checked")["in_place"]
    applied = host.call()
    assert applied["changed"]
    assert not host.call(state="checked")["in_place"]
    assert "mtu: enp1s0f0np0 has 1500, planned 9000" in applied["differences"]
    assert "networkd" in host.netplan.read_text()
    assert "enp1s0f0v0" in (host.directory / "etc/nm.conf").read_text()
    assert host.call(state="confirmed", transaction=applied["transaction"])["msg"] == "The change holds"
    again = host.call()
    assert (again["changed"], again["msg"]) == (False, "Files and live state are as planned")
    assert host.call(state="checked")["in_place"]
    host.ports["enp1s0f0v0"]["addr_info"] = []
    assert not host.call(state="checked")["in_place"]


def test_an_interface_that_leaves_the_plan_loses_its_address_and_restore_knows_it(host: Host) -> None:
    host.call(state="confirmed", transaction=host.call()["transaction"])
    shrunk = host.call(vfs=[])
    assert "Applied and checked" in shrunk["msg"]
    assert host.ports["enp1s0f0v0"]["addr_info"] == []
    host.call(state="confirmed", transaction=shrunk["transaction"])
    past = netplan_undo.State().manifests()[-1]
    assert past.links["enp1s0f0v0"].addresses == ("10.100.0.1/24",)


def own(host: Host, files: dict[Path, str | None], **more: Any) -> netplan.Change:
    """Return a change of these files on two ports."""
    return netplan.Change(
        "plan", files, **{"sysctls": {}, "links": ["enp1s0f0np0", "enp1s0f0v0"], "restore_links": {}} | more,
        restore_sysctls={}, timeout=60, networkd=True,
    )  # fmt: skip


def test_a_file_without_a_directory_may_be_absent_and_all_ports_and_sysctls_are_changed(host: Host) -> None:
    keys = [host.directory / "proc" / name for name in "ab"]
    keys[0].parent.mkdir()
    for key in keys:
        key.write_text("0")
    files = {host.directory / "nowhere/x.conf": None, host.netplan: "network: {}\n"}
    state = netplan_undo.State()
    identity = netplan.execute(state, own(host, files, sysctls={"a": 1, "b": 2, "c": 3}), list, 0)
    assert [key.read_text() for key in keys] == ["1", "2"]
    manifest = netplan_undo.load(state.pending)
    assert manifest is not None
    assert (manifest.id, sorted(manifest.links), manifest.sysctls) == (
        identity,
        ["enp1s0f0np0", "enp1s0f0v0"],
        {"a": "0", "b": "0"},
    )
    assert not (host.directory / "nowhere").exists()


def test_a_full_disk_leaves_no_new_file(host: Host) -> None:
    (host.directory / "file").write_text("")
    files = {host.netplan: "a", host.sysctl: "b", host.directory / "file/below.conf": "c"}
    with pytest.raises(system.HostError, match="The network was not changed, the old state holds"):
        netplan.execute(netplan_undo.State(), own(host, files), list, 0)
    assert list(host.netplan.parent.iterdir()) == []


def test_a_host_may_need_a_moment_after_a_change(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system.time, "sleep", lambda _seconds: None)
    seen = [["mtu"], ["mtu"], [], []]
    assert netplan.execute(netplan_undo.State(), own(host, {host.netplan: "a"}), lambda: seen.pop(0), 20)


@pytest.mark.parametrize("error", [system.HostError("refused"), OSError(5, "broken")])
@pytest.mark.parametrize("step", ["switch", "undo"])
def test_whatever_fails_after_the_undo_was_armed_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    def fail(*_words: object) -> str:
        raise error

    monkeypatch.setattr(netplan, step, fail)
    with pytest.raises(system.HostError, match=r"(?s)After the change:.*(refused|broken)"):
        netplan.execute(netplan_undo.State(), own(host, {host.netplan: "a"}), lambda: ["mtu"], 0)
    assert netplan_undo.State().pending.exists() is (step == "undo")


@pytest.mark.parametrize("part", ["activate", "restore_runtime"])
def test_what_an_activation_could_not_do_undoes_it(host: Host, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(netplan_files if part == "activate" else netplan, part, lambda *_words: [f"{part} failed"])
    with pytest.raises(system.HostError, match=f"(?s)After the change:\n- {part} failed"):
        netplan.execute(netplan_undo.State(), own(host, {host.netplan: "a"}), list, 0)


@pytest.mark.parametrize("refused", [0, 1])
def test_netplan_reads_the_present_files_and_then_the_new_ones(
    host: Host, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    seen: list[object] = []

    @contextmanager
    def generated(files: object) -> Iterator[None]:
        seen.append(files)
        if len(seen) == refused + 1:
            raise system.HostError("line 3")
        yield

    monkeypatch.setattr(netplan_files, "generated", generated)
    words = "refuses this host's files together" if refused else "already refuses"
    with pytest.raises(system.HostError, match=f"Nothing was changed. netplan {words}.*line 3"):
        netplan.validate({host.netplan: "a"})
    assert seen == [{}, {host.netplan: "a"}][: refused + 1]


def test_check_mode_only_reports(host: Host) -> None:
    told = host.call(check_mode=True)
    assert told["changed"]
    assert not host.netplan.exists()
    assert not (host.directory / "state").exists()


def test_a_failed_check_rolls_the_change_back(host: Host) -> None:
    host.follows = False
    said = host.call()
    assert said["failed"]
    assert "address: enp1s0f0v0 lacks 10.100.0.1/24" in said["msg"]
    assert said["msg"].endswith("a check failed; the old state is back")
    assert not host.netplan.exists()


def test_a_loss_on_another_interface_is_named_and_not_reported_as_restored(host: Host) -> None:
    host.loses = "the address"
    said = host.call()
    assert "other interfaces: the address 10.99.0.11/24 of mgmt0 is gone" in said["msg"]
    assert "the old files are back, but" in said["msg"]
    assert "the old state is back" not in said["msg"]


def test_files_that_netplan_refused_before_are_named_before_anything_is_changed(host: Host) -> None:
    host.refusals = [system.HostError("/etc/netplan/90-NM-1.yaml:3:5: Error in network definition")]
    said = host.call()
    assert said["failed"]
    assert "netplan already refuses the files that this host has now: /etc/netplan/90-NM-1.yaml" in said["msg"]
    assert not host.netplan.exists()


def test_a_netplan_that_does_not_end_is_not_called_a_refusal(host: Host) -> None:
    host.refusals = [system.NoAnswer("netplan generate: no answer within 120 s")]
    said = host.call()
    assert said["failed"]
    assert said["msg"].startswith("Nothing was changed. netplan generate: no answer within 120 s, so it is unknown")
    assert "refuses" not in said["msg"]


def test_state_checked_changes_nothing_and_finds_each_reason(host: Host) -> None:
    del host.ports["enp1s0f0v0"]
    checked = host.call(state="checked")
    assert (checked["changed"], host.netplan.exists()) == (False, False)
    host.refusals = [system.HostError("/etc/netplan/90-NM-1.yaml: Error in network definition")]
    assert "netplan already refuses" in host.call(state="checked")["msg"]
    assert "it carries the default route" in host.call(state="checked", pfs=[{"name": "mgmt0"}])["msg"]


def test_the_management_interface_is_refused(host: Host) -> None:
    said = host.call(pfs=[{"name": "mgmt0"}])
    assert said["findings"][0]["rule"] == "netplan.management"
    assert "it carries the default route of this host" in said["msg"]


def test_reset_goes_back_to_the_beginning_and_forgets(host: Host) -> None:
    for mtu in (9000, 8000):
        host.call(state="confirmed", transaction=host.call(mtu=mtu)["transaction"])
    gone = host.call(state="absent")
    assert gone["changed"]
    assert not host.netplan.exists()
    assert host.ports["enp1s0f0v0"] == port(1500)
    host.call(state="confirmed", transaction=gone["transaction"])
    assert not (host.directory / "state").exists()
    assert host.call(state="absent")["msg"] == "This host has no confirmed change to undo"


def test_a_file_that_may_not_be_written_is_explained(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "/usr/local/lib/gb10")

    monkeypatch.setattr(netplan, "execute", denied)
    monkeypatch.setattr(system, "root_remedy", lambda: "Set become.")
    assert host.call()["msg"] == "/usr/local/lib/gb10: Permission denied. Set become."


def test_parameters_without_a_plan_change_nothing(host: Host) -> None:
    assert "Nothing was changed: pfs and vfs are not" in host.call(vfs=[{"netdev": "x"}])["msg"]


def test_a_second_run_at_the_same_time_is_refused_and_takes_nothing_from_the_first(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run deleted the record, the old files and the unit of the first, whose undo was lost."""
    said: list[dict[str, Any]] = []
    wanted = host.activate

    def meanwhile(names: Collection[str], networkd: bool) -> list[str]:
        said.append(host.call(mtu=8000))
        return wanted(names, networkd)

    monkeypatch.setattr(netplan_files, "activate", meanwhile)
    applied = host.call()
    assert "Another process changes this host's network now" in said[0]["msg"]
    assert f"process {os.getpid()} (state applied, user" in said[0]["msg"]
    assert host.call(state="confirmed", transaction=applied["transaction"])["changed"]
    assert host.ports["enp1s0f0v0"]["mtu"] == 9000


SMALL, LARGE = (netplan_undo.LinkState(mtu, True, ()) for mtu in (1500, 9000))
PLAIN, LINK = netplan_files.Attributes(0o644), netplan_files.Attributes(0o640)
PAST = [
    netplan_undo.Manifest(
        "1", "plan", 60, {"/a": "old", "/b": None}, {"p0": SMALL}, {"x": "0"}, attributes={"/a": LINK}
    ),
    netplan_undo.Manifest(
        "2", "plan", 60, {"/a": "one", "/c": "c"}, {"p0": LARGE}, {"y": "1"}, attributes={"/a": PLAIN}
    ),
    netplan_undo.Manifest("3", "plan", 60, {"/b": "three"}, {"p1": LARGE}, {}, attributes={"/b": PLAIN}),
]


@pytest.mark.parametrize(
    ("past", "forget", "files", "attributes", "links", "sysctls"),
    [
        (1, False, {"/a": "old", "/b": None}, {"/a": LINK}, {"p0": SMALL}, {"x": "0"}),
        (2, False, {"/a": "one", "/c": "c"}, {"/a": PLAIN}, {"p0": LARGE}, {"y": "1"}),
        (2, True, {"/a": "old", "/b": None, "/c": "c"}, {"/a": LINK}, {"p0": SMALL}, {"x": "0", "y": "1"}),
        (
            3,
            True,
            {"/a": "old", "/b": None, "/c": "c"},
            {"/a": LINK},
            {"p0": SMALL, "p1": LARGE},
            {"x": "0", "y": "1"},
        ),
    ],
)
def test_a_reset_takes_each_value_from_the_oldest_change_that_has_it(
    past: int, forget: bool, files: Any, attributes: Any, links: Any, sysctls: Any
) -> None:
    change = netplan.back(PAST[:past], forget, 60)
    assert {str(path): text for path, text in change.files.items()} == files
    assert {str(path): kept for path, kept in change.attributes.items()} == attributes
    assert (change.restore_links, change.restore_sysctls, change.forget) == (links, sysctls, forget)


def test_restore_brings_back_mode_and_link(host: Host) -> None:
    """A file that other users had to read got mode 0600."""
    host.netplan.write_text("network: {}\n")
    host.netplan.chmod(0o640)
    host.sysctl.symlink_to("nothing")
    host.call(state="confirmed", transaction=host.call()["transaction"])
    assert not host.sysctl.is_symlink()
    host.call(state="confirmed", transaction=host.call(state="restored")["transaction"])
    assert (host.netplan.read_text(), host.netplan.stat().st_mode & 0o777) == ("network: {}\n", 0o640)
    assert str(host.sysctl.readlink()) == "nothing"


def test_a_gateway_that_stops_answering_undoes_the_change(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("10.99.0.1", "fe80::1"), ("fe80::1",)]
    monkeypatch.setattr(others, "answering_gateways", lambda: answers.pop(0))
    said = host.call()
    assert "- gateway 10.99.0.1 answered before and does not answer now\n" in said["msg"]
    assert "fe80::1" not in said["msg"]
    assert not host.netplan.exists()


def test_sysctls_are_compared_set_and_undone(host: Host) -> None:
    key = host.directory / "proc/net/ipv4/conf/enp1s0f0v0/arp_ignore"
    key.parent.mkdir(parents=True)
    key.write_text("0")
    applied = host.call()
    assert [line for line in applied["differences"] if "sysctl" in line] == [
        "sysctl: net/ipv4/conf/enp1s0f0v0/arp_ignore is 0, planned 1"
    ]
    assert key.read_text() == "1"
    host.call(state="confirmed", transaction=applied["transaction"])
    host.call(state="confirmed", transaction=host.call(state="restored")["transaction"])
    assert key.read_text() == "0"


def test_vfs_that_a_pod_holds_are_reported_with_their_pod(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    del host.ports["enp1s0f0v0"]
    monkeypatch.setattr(netplan.netns, "holders", lambda: ["space"])
    monkeypatch.setattr(
        netplan.netns, "holder_of", lambda name, _mac, _ip, spaces: f"pod of {name}" if spaces else None
    )
    assert host.call(state="checked")["held"] == {"enp1s0f0v0": "pod of enp1s0f0v0"}
    second = {"netdev": "enp1s0f1v0", "address": "10.101.0.1", "prefix": 24}
    both = {"enp1s0f0v0": "pod of enp1s0f0v0", "enp1s0f1v0": "pod of enp1s0f1v0"}
    assert host.call(state="checked", vfs=[*PLAN["vfs"], second])["held"] == both
    host.ports["enp1s0f0v0"] = port(1500)

    def holders() -> list[str]:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(netplan.netns, "holders", holders)
    assert host.call(state="checked")["held"] == {}
