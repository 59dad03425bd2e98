#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._support.sources import gather

PLACES = {"proc": "proc", "etc": "etc", "lib": "var/lib"}
# A command that takes longer, for example on a host whose GPU driver hangs, is recorded as missing.
SECONDS = "30"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "root": {"type": "path", "default": "/"},
            "log_dir": {"type": "path", "default": "/var/log/gb10"},
            "limit_kib": {"type": "int", "default": 512},
        },
        supports_check_mode=True,
    )

    def run(command: Any) -> tuple[int | None, str, str]:
        program = module.get_bin_path(command[0])
        if program is None:
            return None, "", ""
        status, output, error = module.run_command(["timeout", SECONDS, program, *command[1:]])
        return status, output, error

    root = Path(module.params["root"])
    places = PLACES | {"group_logs": module.params["log_dir"].lstrip("/")}
    roots = {"sysfs": Path(module.params["sysfs_root"])} | {name: root / place for name, place in places.items()}
    texts, missing = gather(run, roots, 1024 * module.params["limit_kib"])
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
