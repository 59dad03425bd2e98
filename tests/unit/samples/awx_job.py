# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a playbook as AWX runs a job: ansible-runner transmits, works and processes, with the files that AWX writes.

Read from AWX as of October 2024 (commit e21dd0a0): awx/main/tasks/jobs.py (classes BaseTask and RunJob),
receptor.py and models/unified_jobs.py.
AWX reads the inventory of a project with ansible-inventory --export, and gives it to the job as a program. Usage:
awx_job.py DIRECTORY PLAYBOOK JSON, where the JSON has inventories, extra, arguments and become_password.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible_runner
import yaml
from ansible_plays import STARTS

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
# What a project update checks out, without what the playbooks do not read.
PROJECT = ("ansible.cfg", "collections", "galaxy.yml", "meta", "playbooks", "plugins", "roles")
ABOUT = {"job_id": 7, "job_launch_type": "manual", "user_id": 1, "user_name": "admin", "user_email": "a@example.com"}
ABOUT |= {"user_first_name": "", "user_last_name": "", "inventory_id": 3, "inventory_name": "sparks"}
EXTRA = {f"{prefix}_{name}": value for prefix in ("awx", "tower") for name, value in ABOUT.items()}
ENVIRONMENT = {
    "ANSIBLE_COLLECTIONS_PATH": "requirements_collections:./collections:~/.ansible/collections",
    "ANSIBLE_FORCE_COLOR": "True",
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "True",
    "ANSIBLE_RETRY_FILES_ENABLED": "False",
    "AWX_HOST": "https://awx.example.com",
    "INVENTORY_ID": "3",
    "JOB_ID": "7",
    "MAX_EVENT_RES": "700000",
    "PROJECT_REVISION": "0" * 40,
}


def exported(inventories: Sequence[str]) -> dict[str, Any]:
    """Return what AWX keeps of an inventory, without the sudo password, which it has in a credential."""
    given = [word for path in inventories for word in ("-i", path)]
    words = [PROGRAMS / "ansible-inventory", *given, "--list", "--export"]
    data: dict[str, Any] = json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout)
    for number, values in enumerate(data["_meta"]["hostvars"].values()):
        values |= {"remote_tower_enabled": "true", "remote_tower_id": number}
    for group in data.values():
        group.get("vars", {}).pop("ansible_become_password", None)
    return data


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file of the private data directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def run(
    directory: Path,
    playbook: str,
    inventories: Sequence[str],
    extra: Mapping[str, Any],
    arguments: Sequence[str] = (),
    become_password: str = "",
) -> tuple[str, str]:
    """Return the status of the job and its output; the password answers the prompt, as AWX does it."""
    private = directory / "private"
    for name in PROJECT:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        target = private / "project" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy(source, target, **({"symlinks": True} if source.is_dir() else {}))  # type: ignore[operator]
    (private / "cp").mkdir(mode=0o700)
    write(private / "inventory" / "hosts", f"#!{sys.executable}\nprint({json.dumps(exported(inventories))!r})\n", 0o700)
    write(private / "env" / "extravars", yaml.safe_dump({**extra, **EXTRA}))
    asking = ["--ask-become-pass"] if become_password else []
    write(private / "env" / "cmdline", ansible_runner.utils.args2cmdline("--become", *asking, *arguments))
    write(private / "env" / "settings", json.dumps({"suppress_ansible_output": True, "suppress_output_file": True}))
    output: list[str] = []
    job = {"ident": "7", "private_data_dir": str(private), "playbook": playbook, "inventory": "hosts"}
    answers = {r"BECOME password.*:\s*?$": become_password}
    part = ansible_runner.interface.run
    STARTS["program"] += 2  # of this job: ansible-inventory and ansible-playbook
    with (directory / "work").open("w+b") as work, (directory / "result").open("w+b") as result:
        part(streamer="transmit", _output=work, passwords=answers, envvars=ENVIRONMENT, suppress_env_files=True, **job)
        work.seek(0)
        part(streamer="worker", _input=work, _output=result, private_data_dir=str(directory / "worker"))
        result.seek(0)
        done = part(
            streamer="process",
            quiet=True,
            _input=result,
            event_handler=lambda event: output.append(event["stdout"]),
            **job,
        )
    return done.status, "\n".join(output)


if __name__ == "__main__":
    status, text = run(Path(sys.argv[1]), sys.argv[2], **json.loads(sys.argv[3]))
    print(text)
    sys.exit(status != "successful")
