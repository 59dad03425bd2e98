#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.memory import descending
from ansible_collections.gb10.cluster.plugins.module_utils._host import system, tuning

CONFIG = Path("/etc/gb10/tuning.json")
# An installation fetches a package of 25 kB, and may wait for another package manager first.
SLOW = 300
# SGLang's usual share leaves 10 % of the memory, so a server that has loaded does not keep the caches empty.
FREE = 10


def asked(params: dict[str, Any]) -> tuning.Wanted:
    """Return the settings that the options request. Raise HostError for invalid values."""
    wrong = []
    percent = params["memory_guard_percent"]
    if not descending(percent):
        wrong.append(f"memory_guard_percent = {percent}: give two numbers below 50, the larger one first")
    if params["swappiness"] is not None and not 0 <= params["swappiness"] <= 200:
        wrong.append(f"swappiness = {params['swappiness']}: the kernel takes 0 to 200")
    if params["gpu_clock_mhz"] is not None and not 200 <= params["gpu_clock_mhz"] <= 5000:
        wrong.append(f"gpu_clock_mhz = {params['gpu_clock_mhz']}: give the clock in MHz, 200 to 5000")
    if wrong:
        raise system.HostError(f"Nothing was changed: {'; '.join(wrong)}")
    return tuning.Wanted(
        headless=params["headless"],
        guard=(percent[0], percent[1]) if params["memory_guard"] else None,
        caches=FREE if params["drop_caches"] else None,
        swappiness=params["swappiness"],
        clock_mhz=params["gpu_clock_mhz"],
    )


def execute(step: tuning.Step, files: dict[Path, str]) -> None:
    """Carry out one change; raise HostError."""
    for path in step.write:
        system.write_atomic(path, files[path])
    for package in step.install:
        install(package)
    for command in step.commands:
        system.run(command)
    for package in step.purge:
        apt("purge", package)
    for path in step.delete:
        path.unlink(missing_ok=True)
        # The package of the host's units is two directories deep.
        for parent in (path.parent, path.parent.parent):
            ours = parent.name.endswith((".service.d", ".slice.d")) or tuning.LIBRARY in parent.parents
            if ours and parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
    for command in step.after:
        system.run(command)


def apt(*words: str) -> None:
    """Run apt-get without questions; raise HostError."""
    system.run(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", *words], timeout=SLOW)


def install(package: str) -> None:
    """Install a package; fetch the package lists first if APT does not know it. Raise HostError with the remedy."""
    try:
        apt("install", package)
    except system.HostError:
        try:
            apt("update")
            apt("install", package)
        except system.HostError as error:
            raise system.HostError(
                f"{error}. Install the package {package} yourself, or set node_tuning_memory_guard: false."
            ) from error


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Bring the host to the desired state and fill in the result."""
    wanted, host = asked(module.params), tuning.observe()
    record = system.read_state(CONFIG)
    origin = tuning.from_dict(record) if record else host
    files = wanted.files()
    now = {path: system.read_text(path) for path in files}
    present = frozenset(path for path, text in now.items() if text is not None)
    stale = frozenset(path for path, text in files.items() if text and system.differs(path, text, 0o644))
    stale |= tuning.stopped(files)
    todo = list(tuning.steps(wanted, host, origin, stale, present))
    result["changes"] = [step.what for step in todo]
    result["changed"] = bool(todo)
    result["diff"] = {
        "before": json.dumps({str(path): text or "" for path, text in now.items()}, indent=2) + "\n",
        "after": json.dumps({str(path): text.strip() for path, text in files.items()}, indent=2) + "\n",
    }
    if todo and not module.check_mode:
        # Write the record first: it has the original state, also if a later step fails.
        if not record:
            system.write_atomic(CONFIG, json.dumps(asdict(origin)) + "\n", 0o600)
        for step in todo:
            execute(step, files)
    if not module.check_mode and wanted == tuning.Wanted() and CONFIG.exists():
        CONFIG.unlink()
        if not any(CONFIG.parent.iterdir()):
            CONFIG.parent.rmdir()
    result["msg"] = "; ".join(result["changes"]) or "nothing to change"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "headless": {"type": "bool", "default": False},
            "memory_guard": {"type": "bool", "default": False},
            "memory_guard_percent": {"type": "list", "elements": "int", "default": [3, 2]},
            "drop_caches": {"type": "bool", "default": False},
            "swappiness": {"type": "int"},
            "gpu_clock_mhz": {"type": "int"},
        },
        supports_check_mode=True,
    )
    result: dict[str, Any] = {"changed": False, "msg": "", "changes": []}
    try:
        converge(module, result)
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "msg": system.explain(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
