# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the tasks of role models that fetch a model, on three hosts that are addresses of the loopback interface."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible
from model_transfers import FILES, REPO, Hub, address, free_port

ROOT = Path(__file__).resolve().parents[4]
TOTAL = sum(map(len, FILES.values()))
HOSTS = {f"spark{number}": number for number in (1, 2, 3)}


def play(
    tmp_path: Path, hub: Hub, *words: str, check: bool = True, on: str = "ansible_play_hosts", **options: Any
) -> str:
    """Fetch the model with role models, which only the hosts in ``on`` include; return the output."""
    own = {
        name: {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "models_dir": str(tmp_path / name),
            "planned": {"vfs": [{"address": address(number), "prefix": 24}], "pfs": [{"address": None}]},
        }
        for name, number in HOSTS.items()
    }
    inventory, book = tmp_path / "inventory.yml", tmp_path / "book.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": own}}))
    fact = {"gb10_fabric_plan": {"hosts": {name: host["planned"] for name, host in own.items()}}, "cacheable": True}
    values = {
        "models_url": hub.url,
        "models_share_port": free_port(),
        "models_reserve_gb": 0,
        "models_hf_token": "hf_secret",
    }
    wanted = {"models_wanted": [{"repo": REPO, "revision": "main"}], **values, **options}
    fetch = {"name": "gb10.cluster.models", "tasks_from": "fetch"}
    tasks = [
        {"name": "Plan", "ansible.builtin.set_fact": fact},
        {
            "name": "Fetch",
            "ansible.builtin.include_role": fetch,
            "vars": wanted,
            "when": f"inventory_hostname in {on}",
        },
    ]
    book.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    done = ansible("ansible-playbook", "-i", inventory, book, *words)
    assert (done.returncode == 0) is check, done.stdout + done.stderr
    assert not list(tmp_path.glob("*/.gb10-share")), done.stdout + done.stderr
    return done.stdout


def test_one_host_downloads_and_two_copy(tmp_path: Path, hub: Hub) -> None:
    said = play(tmp_path, hub, "--check")
    assert "spark1: downloads 4.4 MB from the hub" in said and hub.sent == 0
    said = play(tmp_path, hub, "-vvv")
    assert hub.sent == TOTAL
    for name in HOSTS:
        for file, data in FILES.items():
            assert (tmp_path / name / "org--tiny" / file).read_bytes() == data
    assert said.count("models: 3 of 3 files, 100 %") >= len(HOSTS)
    assert "hf_secret" not in said and not re.search(r"\b(?=\w*[A-Z])[A-Za-z0-9]{40}\b", said)
    said = play(tmp_path, hub)
    assert said.count("changed=0") == len(HOSTS) and "has all files" in said
    assert hub.sent == TOTAL


def test_after_a_failure_nothing_is_left_open(tmp_path: Path, hub: Hub) -> None:
    hub.deny = True
    said = " ".join(play(tmp_path, hub, check=False).split())
    assert "the token is missing or wrong" in said and "spark1 failed: " in said


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(tmp_path: Path, hub: Hub) -> None:
    said = play(tmp_path, hub, check=False, models_reserve_gb=10**9)
    assert said.count("must stay free") == len(HOSTS) and hub.sent == 0


@pytest.mark.parametrize("on", ["ansible_play_hosts", "['spark2', 'spark3']"])
def test_only_the_named_nodes_fetch(tmp_path: Path, hub: Hub, on: str) -> None:
    play(tmp_path, hub, on=on, models_nodes=["spark2", "spark3"])
    assert hub.sent == TOTAL
    assert sorted(path.name for path in tmp_path.glob("*/org--tiny")) == ["org--tiny"] * 2
    assert not (tmp_path / "spark1").exists()


def test_without_sharing_each_host_downloads(tmp_path: Path, hub: Hub) -> None:
    play(tmp_path, hub, models_share=False)
    assert hub.sent == len(HOSTS) * TOTAL
