# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the tasks of role models that fetch a model, on three hosts that are addresses of the loopback interface."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible_cases
from model_transfers import FILES, REPO, Hub, address, free_port

TOTAL = sum(map(len, FILES.values()))
HOSTS = {f"spark{number}": number for number in (1, 2, 3)}


# Hosts and role's variables of each case. A case has a directory and a hub of its own; two have the same, so that the
# second one finds all files.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "shared": ("all", {}),
    "again": ("all", {}),
    "a full disk": ("spark1:spark2", {"models_reserve_gb": 10**9}),
    "not shared": ("all", {"models_share": False, "models_nodes": ["spark2", "spark3"]}),
    "denied": ("spark1", {}),
    "held": (
        "spark1:spark2",
        {"__models_lock": "{{ inventory_dir }}/held", "__models_process": "{{ inventory_dir }}/serving"},
    ),
}
DIRECTORIES = {name: "shared" if name == "again" else name.replace(" ", "-") for name in CASES}


class Played:
    """The plays of all cases in one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hubs = {where: Hub() for where in {*DIRECTORIES.values(), "check"}}
        self.hubs["denied"].deny = True
        # Another run transfers models, and serves files.
        (directory / "held").write_text(json.dumps({"holder": "{}", "run": "a transfer of models", "until": 2e10}))
        (directory / "serving").write_text("4711")
        own = {
            name: {"planned": {"vfs": [{"address": address(number), "prefix": 24}], "pfs": [{"address": None}]}}
            for name, number in HOSTS.items()
        }
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": own, "vars": local}}))
        fabric = {"hosts": {name: host["planned"] for name, host in own.items()}}
        plan = {"ansible.builtin.set_fact": {"gb10_fabric_plan": fabric, "cacheable": True}}
        cases = {name: self.play(where, *CASES[name]) for name, where in DIRECTORIES.items()}
        cases["shared"]["tasks"].insert(0, plan)
        words = ("-i", directory / "hosts.yml")
        self.done = ansible_cases(directory, cases, *words, "-vvv")
        checked = {"check": self.play("check", "spark1:spark2", {})}
        checked["check"]["tasks"].insert(0, plan)
        self.checked = ansible_cases(directory, checked, *words, "--check")["check"][1]

    def play(self, where: str, hosts: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the play of a case, which fetches the model with role models."""
        values = {
            "models_wanted": [{"repo": REPO, "revision": "main"}],
            "models_dir": f"{self.directory / where}/{{{{ inventory_hostname }}}}",
            "models_url": self.hubs[where].url,
            "models_share_port": free_port(),
            "models_reserve_gb": 0,
            "models_hf_token": "hf_secret",
            "__models_lock": f"{self.directory}/{{{{ inventory_hostname }}}}.json",
            "__models_process": f"{self.directory}/{{{{ inventory_hostname }}}}.pid",
        }
        fetch = {"name": "gb10.cluster.models", "tasks_from": "fetch"}
        task = {"ansible.builtin.include_role": fetch, "vars": {**values, **options}}
        return {"hosts": hosts, "tasks": [task]}

    def whole(self, where: str) -> list[str]:
        """Return the hosts that have all files of a case."""
        return [
            host
            for host in HOSTS
            if all(
                (path := self.directory / where / host / "org--tiny" / file).exists() and path.read_bytes() == data
                for file, data in FILES.items()
            )
        ]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    found = Played(tmp_path_factory.mktemp("models"))
    yield found
    for hub in found.hubs.values():
        hub.shutdown()
        hub.server_close()


def test_one_host_downloads_and_two_copy(played: Played) -> None:
    assert "spark1: downloads 4.4 MB from the hub" in played.checked and played.hubs["check"].sent == 0
    assert played.hubs["shared"].sent == TOTAL and played.whole("shared") == list(HOSTS)
    (failed, said), (failed_again, said_again) = played.done["shared"], played.done["again"]
    assert not failed and not failed_again
    assert said.count("models: 3 of 3 files, 100 %") >= len(HOSTS)
    assert "changed: [" in said and "changed: [" not in said_again and "has all files" in said_again


def test_no_output_has_a_token(played: Played) -> None:
    for _failed, said in played.done.values():
        assert "hf_secret" not in said and not re.search(r"\b(?=\w*[A-Z])[A-Za-z0-9]{40}\b", said)


def test_after_a_failure_and_after_a_transfer_nothing_is_left_open(played: Played) -> None:
    failed, said = played.done["denied"]
    assert failed and "the token is missing or wrong" in " ".join(said.split())
    assert not list(played.directory.glob("*.pid"))
    assert {path.read_text() for path in played.directory.glob("*.json")} == {""}, "the lock is given back"


def test_a_second_transfer_at_once_is_refused_and_leaves_the_first_one_alone(played: Played) -> None:
    failed, said = played.done["held"]
    assert failed and " ".join(said.split()).count("[hosts.run.other]") >= 2
    assert played.hubs["held"].sent == 0 and played.whole("held") == []
    assert json.loads((played.directory / "held").read_text())["until"] == 2e10
    assert (played.directory / "serving").read_text() == "4711", "its process is not ended"


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(played: Played) -> None:
    failed, said = played.done["a full disk"]
    assert failed and played.hubs["a-full-disk"].sent == 0
    assert set(re.findall(r"error: (\w+): ", said)) == {"spark1", "spark2"} and "must stay free" in said


def test_only_the_named_nodes_fetch_and_without_sharing_each_downloads(played: Played) -> None:
    assert played.hubs["not-shared"].sent == 2 * TOTAL and played.whole("not-shared") == ["spark2", "spark3"]
    assert not (played.directory / "not-shared" / "spark1").exists()
