# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play role ``summary`` for a group on two of four nodes, up to its first call of the API, which does not answer."""

import re
import sys
from pathlib import Path

import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]


def test_only_nodes_of_the_group_are_read(tmp_path: Path) -> None:
    plan = {"namespace": "models", "instance": "two", "ranks": [{"node": "spark3"}, {"node": "spark4"}]}
    play = {
        "hosts": "gb10_nodes",
        "connection": "local",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable, "ansible_become": False},
        "tasks": [
            {"ansible.builtin.set_fact": {"gb10_serving_plan": plan, "cacheable": True}},
            {"ansible.builtin.import_role": {"name": "gb10.cluster.summary"}},
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    words = ["-i", "inventory/4x-gb10-switch"]
    for name in ("summary_sysfs_root", "gb10_kubeconfig"):
        words += ["-e", f"{name}={tmp_path / 'none'}"]
    done = ansible("ansible-playbook", *words, tmp_path / "play.yml")
    task = done.stdout.partition("Read the GID tables, and the MTUs inside the pods]")[2].partition("TASK")[0]
    assert sorted(re.findall(r"ok: \[(\w+)\]", task)) == ["spark3", "spark4"], done.stdout + done.stderr
