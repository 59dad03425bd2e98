# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan_files
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_files import Attributes
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
    "nocarrier0": {**link(), "flags": ["UP"]},
    "up0": link(),
}
ROUTES = """\
default via 10.99.0.1 dev mgmt0 proto static metric 102
default via 10.98.0.1 dev wlan0
10.100.0.0/24 dev enp1s0f0v0 proto kernel scope link

blackhole 10.9.0.0/16 proto static
10.42.0.9 dev cali1 scope link
10.97.0.0/24 dev vpn0 scope link
local 10.99.0.11 dev mgmt0 table local
"""
LATER = """\
default via 192.168.177.1 dev enp1s0f0v0 proto dhcp
default via 10.98.0.1 dev wlan0
default via 10.0.0.1 dev wlan0
1.2.3.0/24 dev x
"""
ROUTES6 = "fd00::/64 dev mgmt0 proto ra metric 100 expires 86390sec pref medium\n"


def test_everything_but_the_fabric_and_pods_is_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        ("-4", "route"): ROUTES,
        ("-4", "rule"): "52: from 198.51.100.7 lookup 52\n53: from all lookup main\n",
        ("-6", "route"): ROUTES6,
        ("-6", "rule"): "53: from fd00::/64 lookup 53\n",
    }

    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(list(argv), 0, said[argv[1], argv[2]], "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "links", lambda: LINKS)
    (tmp_path / "resolv.conf").write_text("# a comment\nnameserver 192.0.2.53\n")
    (tmp_path / "second").write_text("nameserver 192.0.2.54\nsearch example.org\n")
    names = ("absent", "resolv.conf", "second")
    monkeypatch.setattr(netplan_files, "RESOLVER_FILES", [tmp_path / name for name in names])
    before = netplan_files.observe(["enp1s0f0v0"])
    said |= {("-4", "route"): LATER, ("-6", "route"): ""}
    later = netplan_files.differences(before, netplan_files.observe([]))
    stored.compare("netplan_observed", {"before": before, "later": later})


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


def test_gateways_of_both_families_that_answer_are_those_whose_ping_does(monkeypatch: pytest.MonkeyPatch) -> None:
    four = [{"dev": "a", "gateway": "10.0.0.1"}, {"dev": "ppp0"}, {"dev": "b", "gateway": "10.0.1.1"}]
    six = [{"dev": "b", "gateway": "fe80::1"}]

    def run(argv: Sequence[str], *, check: bool, timeout: float) -> subprocess.CompletedProcess[str]:
        assert not check
        return subprocess.CompletedProcess(list(argv), 0 if argv[-2] == "b" else 1, "", "")

    monkeypatch.setattr(system, "run_json", lambda argv: six if "-6" in argv else four)
    monkeypatch.setattr(system, "run", run)
    assert netplan_files.default_routes() == [*four, *six]
    assert netplan_files.answering_gateways() == ("10.0.1.1", "fe80::1")


PRESENT, GONE, FILE = Attributes(0o644), Attributes(0o777, target="gone"), Attributes(0o777, target="file")


@pytest.mark.parametrize(
    ("make", "content", "attributes", "held"),
    [
        ("file", "text", PRESENT, True),
        ("file", "other", PRESENT, False),
        ("file", "text", Attributes(0o600), False),
        ("file", "text", Attributes(0o644, uid=54321), False),
        ("file", "text", Attributes(0o644, gid=54321), False),
        ("file", "text", GONE, False),
        ("file", "text", Attributes(0o644, target="gone"), False),
        ("file", "text", None, True),  # a record of an older release
        ("file", None, None, False),
        ("link", "text", FILE, True),
        ("link", "text", Attributes(0o777, target="else"), False),
        ("link", "text when the change began", FILE, True),
        ("link", "text", PRESENT, False),
        ("link", "text", None, False),
        ("dangling", None, GONE, True),
        ("dangling", None, None, False),
        ("absent", None, None, True),
        ("absent", "text", PRESENT, False),
        ("absent", None, GONE, False),
        ("directory", None, None, False),
    ],
)
def test_a_path_is_compared_and_put_back_with_all_that_it_had(
    tmp_path: Path, make: str, content: str | None, attributes: Attributes | None, held: bool
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


def test_a_path_that_cannot_be_has_nothing_and_one_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert netplan_files.read(path / "below") == (None, None)
    assert not netplan_files.holds(tmp_path / ("x" * 300), None, None)
    assert [netplan_files.default_mode(Path(name)) for name in ("a.yaml", "a.conf")] == [0o600, 0o644]
    netplan_files.kept(path).write_text("of an earlier change")
    netplan_files.keep(path)
    assert netplan_files.kept(path).read_text() == "text"
    with pytest.raises(system.HostError, match="is not a file; move it away"):
        netplan_files.read(tmp_path)


def test_a_new_file_is_complete_on_disk_with_its_owner_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, sizes = [], []
    monkeypatch.setattr(os, "fchown", lambda _descriptor, uid, gid: owners.append((uid, gid)))
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    netplan_files.stage(tmp_path / "file", "text", Attributes(0o600, 3, 4))
    assert (owners, sizes) == ([(3, 4)], [4])

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(system.HostError, match="Cannot write"):
        netplan_files.stage(tmp_path / "file", "text", Attributes(0o600))
    assert list(tmp_path.iterdir()) == []
