# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the parts of the lab's code that need neither root nor a lab."""

import ipaddress
import json
from pathlib import Path
from typing import Any

import gids
import model_hub
import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from gb10lab import deps
from gb10lab.lab import Lab
from gb10lab.machines import hosts_of, switches_of
from gb10lab.shell import LabError

COVERS = ("lab/gb10lab", "lab/hosts", "lab/kubernetes", "lab/k3s")

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


def test_without_an_interface_the_table_is_empty() -> None:
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
    # bridge ports and namespaces are named after it
    assert all(len(name) <= 15 for name in names)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(LabError, match="not empty and not a lab"):
        Lab(tmp_path, tmp_path).claim()


@pytest.mark.parametrize("nodes", [0, 65])
def test_number_of_nodes_is_bounded(nodes: int) -> None:
    with pytest.raises(LabError, match="1 to 64"):
        hosts_of(nodes)


INVENTORY = Path(__file__).resolve().parents[2] / "inventory"
EXAMPLES = sorted(path.name for path in INVENTORY.iterdir() if path.name != "lab")


def variables(inventory: str) -> dict[str, Any]:
    files = (INVENTORY / inventory / "group_vars").rglob("*.yml")
    return {name: value for path in files for name, value in yaml.safe_load(path.read_text()).items()}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_overlay_replaces_only_the_network_of_the_addresses(example: str) -> None:
    assert set(variables("lab")) & set(variables(example)) == {"gb10_management_networks"}


@pytest.mark.parametrize(
    ("example", "layout"),
    [("4x-gb10-switch", "switch"), ("2x-gb10-direct", "switch"), ("3x-gb10-ring", "ring"), ("1x-b300", "b300")],
)
def test_the_lab_has_the_hardware_that_an_example_names(example: str, layout: str) -> None:
    declared = yaml.safe_load((INVENTORY / example / "hosts.yml").read_text())
    nodes = declared["gb10_cluster"]["children"]["gb10_nodes"]["hosts"]
    servers = declared["gb10_cluster"]["children"]["gb10_servers"]["hosts"]
    overlay = yaml.safe_load((INVENTORY / "lab" / "hosts.yml").read_text())["all"]["hosts"]
    values = variables(example)
    hosts = {host.name: host for host in hosts_of(len(nodes), layout)}
    for name, known in ((name, (servers.get(name) or {}) | (known or {})) for name, known in nodes.items()):
        host = hosts[name]
        assert overlay[name] == {"ansible_host": host.address}
        assert known["gb10_node_id"] in {host.number, host.number - 10}
        assert values["gb10_management_interface"] == host.management
        cabled = {port.pf for port in host.ports if port.switch}
        for rail in values["gb10_fabric_rails"]:
            if name in rail.get("hosts", [name]):
                assert known.get("gb10_fabric_pfs", {}).get(rail["name"], rail["pf"]) in cabled


def test_a_ring_has_a_switch_per_rail() -> None:
    rails = [rail["name"] for rail in variables("3x-gb10-ring")["gb10_fabric_rails"]]
    assert switches_of(hosts_of(3, "ring")) == sorted(rails)


def test_the_simulated_hubs_listing_can_be_read_by_the_download() -> None:
    commit, files = store.parse_listing(json.dumps(model_hub.listing("organisation/name", "main")))
    assert len(commit) == 40
    assert {file.name: file.size for file in files} == {name: len(data) for name, data in model_hub.FILES.items()}


def test_addresses_follow_from_the_hosts_number() -> None:
    assert [(host.name, host.address) for host in hosts_of(2)] == [
        ("control", "10.99.0.10"),
        ("spark1", "10.99.0.11"),
        ("spark2", "10.99.0.12"),
    ]
