# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that nothing a host reports is executed or obeyed through the inventory that is written for it."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from ansible_collections.gb10.cluster.plugins.action import inventory_new
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import inventory as reported
from cabling_samples import facts, ring
from seen import Seen

PLAIN = re.compile(r"[A-Za-z0-9_./:@ -]*")
HOSTS = ("192.168.10.11", "192.168.10.12", "192.168.10.13")
ROLES = ("ansible_host", "ansible_user", "gb10_models_dir", "gb10_management_interface")
Place = tuple[str | int, ...]
LOADED: dict[str, dict[str, dict[str, Any]]] = {}


def payloads(mark: Path) -> list[Any]:
    pipe = f"lookup('pipe', 'touch {mark}')"
    return [
        f"{{{{ {pipe} }}}}",
        f"/data/{{{{ {pipe} }}}}",
        f"{{% if {pipe} %}}{{% endif %}}",
        "{# a #}",
        f"a\nansible_connection: local\nb: '{{{{ {pipe} }}}}'",
        "a\r- b",
        f"!!python/object/apply:os.system ['touch {mark}']",
        "!unsafe a",
        "!vault |\n  00",
        "&a [*a, *a]",
        "x: y #",
        "'\"",
        "../../../etc/cron.d/evil",
        "/data/../../etc",
        f"-oProxyCommand=touch {mark}",
        f"$(touch {mark})",
        "\x1b[2J\x1b]0;owned\x07",
        "\N{RIGHT-TO-LEFT OVERRIDE}a",
        "a" * 10_000,
        10**30,
        float("nan"),
        float("inf"),
        True,
        b"a",
        [],
        {},
        ["{{ 1 }}"],
        {"{{ 1 }}": "{{ 1 }}"},
        None,
    ]


def places(shape: reported.Shape, at: Place = ()) -> Iterator[Place]:
    """Return where each value and each key is that ``reported.FACTS`` lets through."""
    yield at
    if isinstance(shape, reported.Each):
        yield from places(shape.of, (*at, 0))
    elif isinstance(shape, reported.Named):
        yield (*at, "*")
        yield from places(shape.of, (*at, "enp1s0f0np0"))
    elif not isinstance(shape, reported.Kind):
        for key, part in shape.items():
            yield from places(part, (*at, key))


FIELDS = [
    *places(reported.FACTS),
    *places(reported.LINK, ("enP7s7",)),
]


def honest() -> dict[str, dict[str, Any]]:
    """Return facts of three hosts in which every field has a value."""
    found = {}
    for address, (host, ports) in zip(HOSTS, facts(3, *ring(3)).items(), strict=True):
        ipv4 = {"address": address, "prefix": "24"}
        found[address] = {
            "hostname": host,
            "user_id": "root",
            "env": {"SUDO_USER": "nvidia"},
            "default_ipv4": {"interface": "enP7s7", **ipv4},
            "interfaces": ["enP7s7", "lo"],
            "enP7s7": {"device": "enP7s7", "ipv4": ipv4},
            "mounts": [{"mount": mount, "size_available": len(mount), "options": "rw"} for mount in ("/data", "/")],
            "gb10_pf_totalvfs": {port["name"]: 8 for port in ports},
            "gb10_cabling": [
                {**port, "switch": "sw1", "switch_port": "swp1", "link_local": True, "mtu_passes": 9000}
                for port in ports
            ],
            "gb10_preflight": {"gpus": [{"name": "NVIDIA GB10"}]},
        }
    return found


def changed(host: str, place: Place, value: Any) -> dict[str, dict[str, Any]]:
    found = honest()
    *way, last = place
    part: Any = found[host]
    for step in way:
        part = part[step]
    if last == "*":
        part |= {value: 8} if isinstance(value, (str, bytes, bool, int, float)) else {"-": 8}
    else:
        assert part[last] is not None, f"{place} has no honest value"
        part[last] = value
    return found


def write(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    action = inventory_new.ActionModule.__new__(inventory_new.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    hostvars = {host: {"ansible_facts": own} for host, own in found.items()}
    return action.act({"path": str(path)}, {"hostvars": hostvars, "ansible_play_hosts_all": list(hostvars)})


def loaded(path: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of the hosts as Ansible reads and templates them, without those that it adds.

    What an inventory of the same words gave is not loaded again: many values are left out of it.
    """
    words = "".join(file.read_text(encoding="utf-8") for file in sorted(path.rglob("*.yml")))
    if words not in LOADED:
        LOADED[words] = read(path)
    return LOADED[words]


def read(path: Path) -> dict[str, dict[str, Any]]:
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(path)])
    manager = VariableManager(loader=loader, inventory=inventory)
    found = {}
    for host in inventory.get_hosts():
        every = manager.get_vars(host=host, include_hostvars=False)
        own = {key: every[key] for key in host.get_vars() | group(path) if key in every}
        found[host.name] = Templar(loader=loader, variables=every).template(own)
    return found


def group(path: Path) -> dict[str, Any]:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    text = (path / "group_vars/gb10_cluster.yml").read_text(encoding="utf-8")
    return dict(yaml.load(text, Loader=Loader))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from (*strings(key), *strings(part))
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield value


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "owned"


def test_the_loader_of_these_tests_executes_a_template_that_is_not_marked(tmp_path: Path, mark: Path) -> None:
    write(tmp_path / "mine", honest())
    text = payloads(mark)[0]
    target = tmp_path / "mine/group_vars/gb10_cluster.yml"
    with target.open("a", encoding="utf-8") as file:
        file.write(f"extra: {inventory_new._flow(text)}\n")
    assert loaded(tmp_path / "mine")["spark1"]["extra"] == text
    assert not mark.exists()
    target.write_text(target.read_text(encoding="utf-8").replace("!unsafe ", ""), encoding="utf-8")
    loaded(tmp_path / "mine")
    assert mark.exists()


@pytest.mark.parametrize("place", FIELDS[1:], ids=lambda place: ".".join(map(str, place)))
def test_a_hostile_value_is_refused_by_host_and_key_or_changes_no_word_of_the_inventory(
    place: Place, tmp_path: Path, mark: Path
) -> None:
    usual = set(map(str, strings(loaded_with(honest(), tmp_path / "usual"))))
    refused = 0
    for number, value in enumerate(payloads(mark)):
        path = tmp_path / str(number)
        try:
            result = write(path, changed(HOSTS[-1], place, value))
        except AnsibleActionFail as error:
            refused += 1
            assert HOSTS[-1] in str(error)
            assert str(place[0]) in str(error)
            assert len(str(error)) < 500
            assert not path.exists()
            continue
        assert all(letter.isprintable() or letter == "\n" for letter in result["msg"])
        # Where inventories lie is this machine's, not the host's. A test before may have loaded one of the same words.
        words = {word for word in strings(loaded(path)) if str(tmp_path.parent) not in word}
        assert all(PLAIN.fullmatch(word) and len(word) < 100 for word in words), value
        # A field may be left out, and then other words of the collection stand there, but none of the value's.
        new = words - usual
        assert not [word for word in new if isinstance(value, str) and word in value], value
    assert refused
    assert not mark.exists()


def loaded_with(found: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    write(path, found)
    return loaded(path)


def test_an_honest_inventory_has_every_value_that_hosts_may_choose(tmp_path: Path) -> None:
    found = loaded_with(honest(), tmp_path / "mine")
    assert {key: found["spark2"][key] for key in ROLES if key in found["spark2"]} == {
        "ansible_host": HOSTS[1],
        "ansible_user": "nvidia",
        "gb10_models_dir": "/data/models",
        "gb10_management_interface": "enP7s7",
    }


def test_no_other_fact_is_read() -> None:
    seen = Seen(honest()[HOSTS[0]])
    inventory_new.Machine.of(HOSTS[0], seen)
    assert seen.read == {*reported.FACTS, "enP7s7"}


@pytest.mark.parametrize("name", ["localhost", "all", "ungrouped", "null", "yes", "123", "1e5", "~", "a_b", "-"])
def test_a_host_name_with_a_meaning_is_no_such_thing_in_the_inventory(name: str, tmp_path: Path) -> None:
    found = copy.deepcopy(honest())
    found[HOSTS[0]]["hostname"] = name
    try:
        hosts = set(loaded_with(found, tmp_path / "mine"))
    except AnsibleActionFail as error:
        assert "hostname is" in str(error)
        return
    assert hosts in ({"spark1", "spark2", "spark3"}, {name, "spark2", "spark3"})
    assert not hosts & {"localhost", "all", "ungrouped"}


def test_lists_and_mappings_are_bounded() -> None:
    for place in ("interfaces", "mounts", "gb10_cabling"):
        with pytest.raises(reported.Refused, match=place):
            reported.reported("h", {place: [None] * (reported.ITEMS + 1)})
    with pytest.raises(reported.Refused, match="gb10_pf_totalvfs"):
        reported.reported("h", {"gb10_pf_totalvfs": dict.fromkeys(map(str, range(reported.ITEMS + 1)), 1)})
