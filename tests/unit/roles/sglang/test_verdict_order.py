# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the image judges before a running group is stopped, after its image and models are there."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gb10.cluster.plugins.modules.serving_verdict import question
from ansible_plays import ansible

TASKS = Path(__file__).resolve().parents[4] / "roles/sglang/tasks"


def order(name: str) -> list[str]:
    """Return the task files and modules of a file in the order in which they run."""
    found: list[str] = []

    def walk(tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            walk(task.get("block", []))
            if "gb10.cluster.api_apply" in task and task.get("check_mode"):
                found.append("dry run")
            for key in ("ansible.builtin.import_tasks", "ansible.builtin.include_tasks"):
                value = task.get(key)
                if value:
                    found.append(value["file"] if isinstance(value, dict) else value)
                    if found[-1] in ("replace.yml", "verdict.yml"):
                        walk(yaml.safe_load((TASKS / found[-1]).read_text(encoding="utf-8")))

    walk(yaml.safe_load((TASKS / name).read_text(encoding="utf-8")))
    return found


def test_image_and_api_server_are_asked_after_the_models_are_there_and_before_anything_stops() -> None:
    steps = order("main.yml")
    wanted = [
        "images.yml",
        "models.yml",
        "replace.yml",
        "verdict.yml",
        "configs.yml",
        "dry run",
        "stop_ranks.yml",
        "deploy.yml",
    ]
    assert [step for step in steps if step in wanted] == wanted


def test_the_dry_run_leaves_out_what_is_deleted_with_the_group_and_nothing_else() -> None:
    deleted = set()
    for task in yaml.safe_load((TASKS / "stop_ranks.yml").read_text(encoding="utf-8")):
        options = task.get("kubernetes.core.k8s", {})
        if options.get("delete_all"):
            kind = options["kind"]
            deleted |= {each["kind"] for each in task["loop"]} if "{{" in kind else {kind}
    known = yaml.safe_load((TASKS.parent / "vars/main.yml").read_text(encoding="utf-8"))
    assert deleted == set(known["__sglang_deleted"])


@pytest.mark.parametrize(
    ("check", "outdated", "kinds"), [(True, True, ["Service"]), (True, False, None), (False, True, None)]
)
def test_check_mode_does_not_ask_about_what_would_have_been_deleted(
    check: bool, outdated: bool, kinds: list[str] | None
) -> None:
    every = ["PersistentVolume", "Service", "StatefulSet"]
    loader = DataLoader()
    known = loader.load_from_file(str(TASKS.parent / "vars/main.yml"), trusted_as_template=True)
    known |= {"ansible_check_mode": check, "sglang_changes": {"outdated": outdated}}
    known["sglang_rendered"] = {"objects": [{"kind": kind} for kind in every]}
    task = loader.load_from_file(str(TASKS / "deploy.yml"), trusted_as_template=True)[0]
    applied = Templar(loader=loader, variables=known).template(task["gb10.cluster.api_apply"]["objects"])
    assert [one["kind"] for one in applied] == (kinds or every)


def test_a_refusal_fails_and_an_unknown_verdict_does_not() -> None:
    tasks = yaml.safe_load((TASKS / "verdict.yml").read_text(encoding="utf-8"))
    check, _known = [task["ansible.builtin.assert"] for task in tasks if "ansible.builtin.assert" in task]
    assert check["that"] == "sglang_verdict.verdict != 'refused'"
    assert "{{ sglang_verdict.why }}" in check["fail_msg"]


def test_the_small_files_of_model_and_draft_are_read_and_become_the_question(tmp_path: Path) -> None:
    staged, own = tmp_path / "models" / "org--name", tmp_path / "own"
    for directory in (staged, own):
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({"in": directory.name}))
        (directory / "model.safetensors").write_text("weights")
    (staged / "configuration_name.py").write_text("# code")
    plan = {
        "models": ["org/name"],
        "models_dir": str(tmp_path / "models"),
        "paths": [str(own), str(tmp_path / "absent")],
    }
    kept = {"content": "{{ sglang_configs.results | to_json }}", "dest": str(tmp_path / "read.json")}
    tasks = [{"ansible.builtin.include_tasks": str(TASKS / "configs.yml")}, {"ansible.builtin.copy": kept}]
    (tmp_path / "book.yml").write_text(
        yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "vars": {"sglang_plan": plan}, "tasks": tasks}])
    )
    done = ansible("ansible-playbook", tmp_path / "book.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    files = json.loads((tmp_path / "read.json").read_text())
    asked = json.loads(zlib.decompress(base64.b64decode(question([], files, {}, 1))))["files"]
    assert asked == {
        str(staged): {"config.json": '{"in": "org--name"}', "configuration_name.py": "# code"},
        str(own): {"config.json": '{"in": "own"}'},
    }


def test_a_refusal_or_a_measured_engine_stops_the_play_with_the_words_of_the_image(tmp_path: Path) -> None:
    tasks = yaml.safe_load((TASKS / "verdict.yml").read_text(encoding="utf-8"))
    assert tasks[1]["gb10.cluster.serving_verdict"]["plan"] == "{{ sglang_plan }}"
    kinds = ("accepted", "known", "unknown", "refused")
    hosts = {
        kind: {
            "sglang_verdict": {"verdict": kind, "why": "ValueError: no", "msg": f"{kind} it", "engine": f"e-{kind}"},
            "sglang_verdict_known": {"e-known": "cell one"} if kind == "known" else {},
        }
        for kind in kinds
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    play = {"hosts": "all", "gather_facts": False, "vars": {"sglang_instance": "glm"}, "tasks": tasks[2:]}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([play]))
    done = ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", tmp_path / "book.yml")
    assert re.findall(r"(\w+) +: ok=.*? failed=1", done.stdout) == ["known", "refused"], done.stdout + done.stderr
    assert all(f"{kind} it" in done.stdout for kind in kinds)
    output = " ".join(done.stdout.split())
    assert "SGLang says ValueError: no." in output and "[serving.verdict.refused]" in output
    assert "to the engine of cell one," in output and "[serving.verdict.known_engine]" in output
