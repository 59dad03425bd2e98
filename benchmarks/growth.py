#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time playbook plan, and the objects of a serving group, for clusters of several sizes, and a bare playbook beside it.

Nothing is contacted. The bare playbook sets one fact on every host twice, as ansible-core does it without this
collection. The group takes 16 nodes (tensor, pipeline and expert parallelism of 4 each), or all of a smaller cluster.
The output is JSON; the exit status is 1 if a size needs more than LIMIT times the CPU time of the bare playbook.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "inventory" / "4x-gb10-switch" / "group_vars" / "gb10_cluster.yml"
PROFILE = ROOT / "plugins" / "profiles" / "qwen3-235b.yml"
GROUP = 16
LIMIT = 4.0
BARE = [
    {
        "hosts": "gb10_nodes",
        "gather_facts": False,
        "tasks": [{"ansible.builtin.set_fact": {"mine": "{{ inventory_hostname }}"}}],
    }
] * 2
RENDER = {
    "hosts": "gb10_nodes",
    "gather_facts": False,
    "vars_files": [str(ROOT / "roles" / "sglang" / part / "main.yml") for part in ("defaults", "vars")],
    "tasks": [
        {"gb10.cluster.serving_objects": {"image": "", "arch": "arm64"}, "run_once": True, "register": "made"},
        {
            "gb10.cluster.show": {
                "text": "objects={{ made.objects | length }} bytes={{ made.objects | to_json | length }} "
                "largest={{ made.objects | map('to_json') | map('length') | max }}"
            },
            "run_once": True,
        },
    ],
}


def write(path: Path, content: Any) -> Path:
    """Write a YAML file, in the order of its keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def make_inventory(directory: Path, nodes: int) -> Path:
    """Write an inventory of so many nodes with the variables of the example for one switch."""
    hosts = {
        f"spark{number}": {"ansible_host": f"192.168.10.{number}", "gb10_node_id": number}
        for number in range(1, nodes + 1)
    }
    groups = {"gb10_servers": {"hosts": {"spark1": None}}, "gb10_nodes": {"hosts": hosts}}
    write(directory / "hosts.yml", {"gb10_cluster": {"children": groups}})
    (directory / "group_vars").mkdir()
    (directory / "group_vars" / EXAMPLE.name).write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    return directory


def make_profile(directory: Path, nodes: int) -> Path:
    """Write a profile for a group of so many nodes into a directory of profiles, and return the directory."""
    profile = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    split = 4 if nodes == GROUP else 1
    parallel = {"nodes": nodes, "tp": nodes // split, "pp": split, "ep": nodes // split}
    write(directory / "wide.yml", profile | {"name": "wide", "topology": parallel})
    return directory


def timed(inventory: Path, playbook: Path, variables: dict[str, Any]) -> tuple[dict[str, float], str]:
    """Run a playbook; return seconds of wall and CPU time with the largest process in MiB, and its output.

    Raises RuntimeError if the playbook fails.
    """
    command = ["ansible-playbook", "-i", str(inventory), str(playbook), "-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as child:
        output = child.stdout.read() if child.stdout else ""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(output.rpartition("TASK [")[2][:3000])
    cpu = usage.ru_utime + usage.ru_stime
    figures = {"seconds": time.perf_counter() - started, "cpu_seconds": cpu, "largest_mib": usage.ru_maxrss / 1024}
    return {name: round(value, 1) for name, value in figures.items()}, output


def measure(directory: Path, nodes: int) -> dict[str, Any]:
    """Return the figures of one size."""
    group = min(nodes, GROUP)
    profiles = make_profile(directory / "profiles", group)
    variables = {"gb10_profile_dirs": [str(profiles)], "profile": "wide", "preset": "current"}
    inventory = make_inventory(directory / "inventory", nodes)
    bare, _ = timed(inventory, write(directory / "bare.yml", BARE), {})
    plan, _ = timed(inventory, ROOT / "playbooks" / "plan.yml", variables)
    before = {"import_playbook": str(ROOT / "playbooks" / "plan.yml")}
    _, output = timed(inventory, write(directory / "render.yml", [before, RENDER]), variables)
    objects = {name: int(number) for name, number in re.findall(r"\b(objects|bytes|largest)=(\d+)", output)}
    return {"bare": bare, "plan": plan, "ratio": round(plan["cpu_seconds"] / bare["cpu_seconds"], 2), "group": objects}


def main() -> int:
    """Measure every size, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 16, 64, 254])
    options = parser.parse_args()
    results = {}
    for nodes in options.nodes:
        print(f"planning {nodes} nodes", file=sys.stderr)
        with tempfile.TemporaryDirectory() as directory:
            results[nodes] = measure(Path(directory), nodes)
    print(json.dumps(results, indent=2))
    return int(any(result["ratio"] > LIMIT for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
