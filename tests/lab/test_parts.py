# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the parts of the lab's code that need neither root nor a lab."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import gids
import pytest
from gb10lab import deps
from gb10lab.lab import Lab, hosts_of
from gb10lab.shell import LabError

FIRST, SECOND = ipaddress.ip_address("10.100.0.1"), ipaddress.ip_address("10.100.0.2")
MAC = "02:6f:2d:48:91:71"


def test_default_gid_is_the_eui_64_of_the_mac() -> None:
    assert gids.link_local(MAC) == "fe80:0000:0000:0000:006f:2dff:fe48:9171"


def test_gid_of_an_ipv4_address_is_mapped_and_in_hexadecimal() -> None:
    assert gids.of_address(FIRST) == "0000:0000:0000:0000:0000:ffff:0a64:0001"


def test_an_address_has_a_v1_and_a_v2_entry_behind_the_default_ones() -> None:
    table = gids.Table()
    table.update(MAC, [FIRST])
    assert [entry and entry[1] for entry in table.slots[:5]] == [*gids.TYPES, *gids.TYPES, None]
    assert table.slots[3] == (gids.of_address(FIRST), "RoCE v2")


def test_entries_keep_their_index_and_new_ones_take_the_first_free() -> None:
    table = gids.Table()
    table.update(MAC, [FIRST, SECOND])
    table.update(MAC, [SECOND])
    assert table.slots[2:4] == [None, None]
    assert table.slots[5] == (gids.of_address(SECOND), "RoCE v2")
    table.update(MAC, [SECOND, FIRST])
    assert table.slots[3] == (gids.of_address(FIRST), "RoCE v2")


def test_a_new_mac_replaces_the_default_gid_in_place() -> None:
    table = gids.Table()
    table.update(MAC, [FIRST])
    table.update("02:00:00:00:00:01", [FIRST])
    assert table.slots[1] == (gids.link_local("02:00:00:00:00:01"), "RoCE v2")
    assert table.slots[3] == (gids.of_address(FIRST), "RoCE v2")


def test_without_interface_the_table_is_empty() -> None:
    table = gids.Table()
    table.update(MAC, [FIRST])
    table.update(None, [])
    assert set(table.slots) == {None}


def test_more_addresses_than_slots_are_left_out() -> None:
    table = gids.Table()
    table.update(MAC, [ipaddress.ip_address(f"10.0.0.{n}") for n in range(1, 20)])
    assert None not in table.slots


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list", "deb http://ftp.example.org/debian bookworm main\n", "http://ftp.example.org/debian"),
        ("sources.list", "deb [arch=amd64] https://a.example/debian/ sid main\n", "https://a.example/debian"),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://b.example/debian\n", "http://b.example/debian"),
    ],
)
def test_mirror_is_the_one_of_this_machines_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: str
) -> None:
    monkeypatch.delenv("GB10_DEBIAN_MIRROR", raising=False)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert deps.mirror(tmp_path) == expected


@pytest.mark.parametrize(
    "text", ["# deb http://old.example/debian a main\n", "deb http://s.example/debian-security a main\n", ""]
)
def test_a_machine_without_a_mirror_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delenv("GB10_DEBIAN_MIRROR", raising=False)
    (tmp_path / "sources.list").write_text(text)
    with pytest.raises(LabError, match="GB10_DEBIAN_MIRROR"):
        deps.mirror(tmp_path)


def test_mirror_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GB10_DEBIAN_MIRROR", "http://mine.example/debian/")
    assert deps.mirror(tmp_path) == "http://mine.example/debian"


def test_labs_of_different_directories_have_different_names(tmp_path: Path) -> None:
    names = {Lab(tmp_path / which, tmp_path).name for which in ("a", "b")}
    assert len(names) == 2
    # a bridge's port or a namespace is called after it
    assert all(len(name) <= 15 for name in names)


def test_a_strange_directory_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(LabError, match="not empty and not a lab"):
        Lab(tmp_path, tmp_path).claim()


@pytest.mark.parametrize("nodes", [0, 65])
def test_number_of_nodes_is_bounded(nodes: int) -> None:
    with pytest.raises(LabError, match="1 to 64"):
        hosts_of(nodes)


def test_addresses_follow_the_number() -> None:
    assert [(host.name, host.address) for host in hosts_of(2)] == [
        ("control", "10.99.0.10"),
        ("spark1", "10.99.0.11"),
        ("spark2", "10.99.0.12"),
    ]
