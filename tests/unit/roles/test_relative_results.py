# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a file with a relative name is written below the directory of the command, not that of the playbook."""

import json
import os
import sys
from pathlib import Path

import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]


def test_the_comparison_of_transports_is_beside_the_proofs(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "books").mkdir()
    proof = {"measured": [{"tokens_per_second": 20.0}], "msg": "as planned"}
    asked = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "nccl_verify_results": {"rdma": proof, "tcp": proof},
    }
    tasks = [
        {"ansible.builtin.set_fact": {"gb10_serving_plan": {"instance": "one"}, "cacheable": True}},
        {"ansible.builtin.import_role": {"name": "gb10.cluster.nccl_verify", "tasks_from": "compare"}},
    ]
    play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
    (tmp_path / "books" / "book.yml").write_text(yaml.safe_dump([play]))
    words = ["-i", "spark1,", "-e", json.dumps(asked), tmp_path / "books" / "book.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PWD": str(tmp_path)}
    done = ansible("ansible-playbook", *words, cwd=tmp_path, env=environment)
    assert list((tmp_path / "results").iterdir()) == [tmp_path / "results" / "transport-one.txt"], done.stdout
