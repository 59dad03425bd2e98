#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_tuning
short_description: Keep a host reachable and steady while it serves a model
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.converging]
description:
  - A Spark has one memory for CPU and GPU. The kernel's OOM killer does not see what CUDA takes, so a server that takes
    too much freezes the host. With O(memory_guard), earlyoom ends the server first, and the host stays reachable.
  - CUDA takes only free memory. With O(drop_caches), a unit gives it the memory of the page cache in time.
  - Every part can also end the desktop at boot, change C(vm.swappiness), or limit the clock of the GPUs.
  - Records what the host had before the first change. A part that is no longer asked for is put back to that.
attributes:
  diff_mode:
    support: full
    description: Shows the files before and after.
  platform:
    support: full
    platforms: linux
    description: >-
      Needs root and systemd. O(memory_guard) needs APT unless earlyoom is installed, O(gpu_clock_mhz) needs
      C(nvidia-smi).
options:
  headless:
    description: Whether the host starts without a desktop from the next boot on.
    type: bool
    default: false
  memory_guard:
    description:
      - Whether the packaged earlyoom watches the available memory. It ends processes of SGLang first, and those of
        sshd, systemd, K3s and containerd last. The pages of services and of logins are protected from reclaim.
    type: bool
    default: false
  memory_guard_percent:
    description:
      - Percentages of available memory below which earlyoom ends and kills a process. A server with
        C(mem_fraction_static) 0.9 leaves about 5 % of a Spark's memory available.
    type: list
    elements: int
    default: [3, 2]
  drop_caches:
    description:
      - Whether a unit drops the page cache and compacts memory while less than 10 % of the memory is free and caches
        hold at least as much. It looks every second and runs without capabilities.
    type: bool
    default: false
  swappiness:
    description: Value of C(vm.swappiness), 0 to 200. The host's own value if not set.
    type: int
  gpu_clock_mhz:
    description: Highest clock of the GPUs in MHz, also after a reboot. No limit if not set.
    type: int
"""

EXAMPLES = r"""
- name: End the server before the host freezes
  gb10.cluster.node_tuning:
    memory_guard: true

- name: Restore what the host had before the first change
  gb10.cluster.node_tuning:
"""

RETURN = r"""
msg:
  description: What was done, or what is wrong and what to do next.
  type: str
  returned: always
changes:
  description: One sentence for every change that was made, or would be made outside of check mode.
  type: list
  elements: str
  returned: always
  sample: ["earlyoom ends the server below 3 % of available memory"]
"""

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
    """Run the module."""
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
