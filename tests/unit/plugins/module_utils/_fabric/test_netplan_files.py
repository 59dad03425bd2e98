# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan_files
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def link(*addresses: str, **more: Any) -> dict[str, Any]:
    found = [{"local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": "global"} for a in addresses]
    return {"flags": ["UP", "LOWER_UP"], "addr_info": found, **more}


LINKS = {
    "mgmt0": link("10.99.0.11/24", "fd00::7/64"),
    "enp1s0f0v0": link("10.100.0.1/24"),
    "cali1": link(link_netnsid=1),
    "vpn0": link("10.97.0.1/24", link_netnsid=2),
    "wlan0": link("10.98.0.1/24"),
}
ROUTES = """\
default via 10.99.0.1 dev mgmt0 proto static metric 102
10.100.0.0/24 dev enp1s0f0v0 proto kernel scope link

blackhole 10.9.0.0/16 proto static
10.42.0.9 dev cali1 scope link
10.97.0.0/24 dev vpn0 scope link
local 10.99.0.11 dev mgmt0 table local
"""
ROUTES6 = """\
fd00::/64 dev mgmt0 proto ra metric 100 expires 86390sec pref medium
"""


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    text = [ROUTES, ROUTES6]

    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        if "-6" in argv:
            said = {"route": text[1], "rule": "53: from fd00::/64 lookup 53\n"}
        else:
            said = {"route": text[0], "rule": "52: from 198.51.100.7 lookup 52\n53: from all lookup main\n"}
        return subprocess.CompletedProcess(list(argv), 0, said[argv[2]], "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "links", lambda: LINKS)
    monkeypatch.setattr(netplan_files, "RESOLVER_FILES", ())
    return text


@pytest.mark.usefixtures("routes")
def test_everything_but_the_fabric_and_pods_is_observed() -> None:
    assert netplan_files.observe(["enp1s0f0v0"]) == (
        "interface mgmt0 that is up",
        "interface vpn0 that is up",
        "interface wlan0 that is up",
        "address 10.99.0.11/24 of mgmt0",
        "address fd00::7/64 of mgmt0",
        "address 10.97.0.1/24 of vpn0",
        "address 10.98.0.1/24 of wlan0",
        "route default via 10.99.0.1 dev mgmt0 proto static metric 102",
        "route blackhole 10.9.0.0/16 proto static",
        "route 10.97.0.0/24 dev vpn0 scope link",
        "rule 52: from 198.51.100.7 lookup 52",
        "rule 53: from all lookup main",
        "route fd00::/64 dev mgmt0 proto ra metric 100 pref medium",
        "rule 53: from fd00::/64 lookup 53",
    )


def test_what_is_gone_and_a_new_default_route_are_differences(routes: list[str]) -> None:
    before = netplan_files.observe(["enp1s0f0v0"])
    routes[1] = ""
    routes[0] = (
        "default via 192.168.177.1 dev enp1s0f0v0 proto dhcp\ndefault via 10.0.0.1 dev wlan0\n1.2.3.0/24 dev x\n"
    )
    found = netplan_files.differences(before, netplan_files.observe([]))
    assert found == [
        "other interfaces: the route default via 10.99.0.1 dev mgmt0 proto static metric 102 is gone",
        "other interfaces: the route blackhole 10.9.0.0/16 proto static is gone",
        "other interfaces: the route 10.97.0.0/24 dev vpn0 scope link is gone",
        "other interfaces: the route fd00::/64 dev mgmt0 proto ra metric 100 pref medium is gone",
        "other interfaces: a new route default via 192.168.177.1 dev enp1s0f0v0 proto dhcp",
        "other interfaces: a new route default via 10.0.0.1 dev wlan0",
    ]


@pytest.mark.usefixtures("routes")
def test_the_name_servers_belong_to_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resolv.conf").write_text("# a comment\nnameserver 192.0.2.53\n")
    (tmp_path / "second").write_text("nameserver 192.0.2.54\nsearch example.org\n")
    names = ("absent", "resolv.conf", "second")
    monkeypatch.setattr(netplan_files, "RESOLVER_FILES", [tmp_path / name for name in names])
    assert [line for line in netplan_files.observe([]) if line.startswith("DNS")] == [
        "DNS setting nameserver 192.0.2.53",
        "DNS setting nameserver 192.0.2.54",
        "DNS setting search example.org",
    ]


def test_default_routes_of_both_families_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run_json", lambda argv: [{"dev": "six" if "-6" in argv else "four"}])
    assert [route["dev"] for route in netplan_files.default_routes()] == ["four", "six"]


def test_the_session_is_found_behind_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid, parent, environment in (
        (os.getpid(), 7, "HOME=/root"),
        (7, 1, "SSH_CONNECTION=10.0.0.1 50 10.99.0.11 22"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tsh\nPPid:\t{parent}\n")
        (tmp_path / str(pid) / "environ").write_text(environment + "\0")
    assert netplan_files.session_address(tmp_path) == "10.99.0.11"
    assert netplan_files.session_address(tmp_path / "absent") == ""
    routes = [{"dev": "wlan0"}, {"dev": "enp1s0f0v0", "gateway": "192.168.177.1", "protocol": "dhcp"}]
    monkeypatch.setattr(netplan_files, "default_routes", lambda: routes)
    monkeypatch.setattr(netplan_files, "session_address", lambda: "fd00::7")  # the second address of mgmt0
    assert netplan_files.protected_interfaces(["bmc0"], LINKS) == {
        "wlan0": "it carries the default route of this host",
        "enp1s0f0v0": "it carries the default route of this host, which the DHCP server 192.168.177.1 gave it",
        "mgmt0": "this Ansible session comes in through it",
        "bmc0": "the inventory names it as management interface",
    }


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (link(), ["interface x that is up"]),
        (link("10.0.0.1/24"), ["interface x that is up", "address 10.0.0.1/24 of x"]),
        (link("10.0.0.1/24", link_netnsid=1), ["interface x that is up", "address 10.0.0.1/24 of x"]),
        (link(link_netnsid=1), []),
        ({**link(), "flags": ["UP"]}, []),
    ],
    ids=["up", "address", "address of a veth", "end of a pod's veth", "without carrier"],
)
@pytest.mark.usefixtures("routes")
def test_which_interfaces_must_stay(
    monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any], expected: list[str]
) -> None:
    monkeypatch.setattr(system, "links", lambda: {"x": shown})
    assert [line for line in netplan_files.observe([]) if line.startswith(("interface", "address"))] == expected


def test_gateways_that_answer_are_those_whose_ping_does(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [{"dev": "a", "gateway": "10.0.0.1"}, {"dev": "ppp0"}, {"dev": "b", "gateway": "10.0.1.1"}]
    monkeypatch.setattr(netplan_files, "default_routes", lambda: known)

    def run(argv: Sequence[str], *, check: bool, timeout: float) -> subprocess.CompletedProcess[str]:
        assert not check
        return subprocess.CompletedProcess(list(argv), 0 if argv[-2:] == ["b", "10.0.1.1"] else 1, "", "")

    monkeypatch.setattr(system, "run", run)
    assert netplan_files.answering_gateways() == ("10.0.1.1",)


PRESENT = netplan_files.Attributes(0o644)


@pytest.mark.parametrize(
    ("make", "content", "attributes", "held"),
    [
        ("file", "text", PRESENT, True),
        ("file", "other", PRESENT, False),
        ("file", "text", netplan_files.Attributes(0o600), False),
        ("file", "text", netplan_files.Attributes(0o644, uid=54321), False),
        ("file", "text", netplan_files.Attributes(0o644, gid=54321), False),
        ("file", "text", netplan_files.Attributes(0o777, target="gone"), False),
        ("file", "text", netplan_files.Attributes(0o644, target="gone"), False),
        ("file", "text", None, True),  # a record of an older release
        ("file", None, None, False),
        ("link", "text", netplan_files.Attributes(0o777, target="file"), True),
        ("link", "text", netplan_files.Attributes(0o777, target="else"), False),
        ("link", "text when the change began", netplan_files.Attributes(0o777, target="file"), True),
        ("link", "text", PRESENT, False),
        ("link", "text", None, False),
        ("dangling", None, netplan_files.Attributes(0o777, target="gone"), True),
        ("dangling", None, None, False),
        ("absent", None, None, True),
        ("absent", "text", PRESENT, False),
        ("absent", None, netplan_files.Attributes(0o777, target="gone"), False),
        ("directory", None, None, False),
    ],
)
def test_a_path_is_compared_and_put_back_with_all_that_it_had(
    tmp_path: Path, make: str, content: str | None, attributes: netplan_files.Attributes | None, held: bool
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "file").chmod(0o644)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("gone")
    (tmp_path / "directory").mkdir()
    path = tmp_path / make
    assert netplan_files.holds(path, content, attributes) == held
    if make in ("file", "link"):
        assert netplan_files.read(path)[0] == "text"
    if make != "directory" and not (attributes and 54321 in (attributes.uid, attributes.gid)):
        netplan_files.put_back(path, content, attributes)
        assert netplan_files.holds(path, content, attributes)


def test_a_path_that_cannot_be_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    assert netplan_files.read(tmp_path / "file/below") == (None, None)
    assert not netplan_files.holds(tmp_path / ("x" * 300), None, None)
    assert [netplan_files.default_mode(Path(name)) for name in ("a.yaml", "a.conf")] == [0o600, 0o644]


def test_an_old_file_that_was_kept_before_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    netplan_files.kept(path).write_text("of an earlier change")
    netplan_files.keep(path)
    assert netplan_files.kept(path).read_text() == "text"


def test_a_new_file_is_complete_on_disk_with_its_owner_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, sizes = [], []
    monkeypatch.setattr(os, "fchown", lambda _descriptor, uid, gid: owners.append((uid, gid)))
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    netplan_files.stage(tmp_path / "file", "text", netplan_files.Attributes(0o600, 3, 4))
    assert (owners, sizes) == ([(3, 4)], [4])

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(system.HostError, match="Cannot write"):
        netplan_files.stage(tmp_path / "file", "text", netplan_files.Attributes(0o600))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(system.HostError, match="is not a file; move it away"):
        netplan_files.read(tmp_path)
