#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: support_info
short_description: Read what a support bundle contains of a host
version_added: 0.1.0
description:
  - Reads versions, the kernel's log, PCIe AER counters, NVRM messages, counters of ports and RDMA devices, addresses,
    netplan, logs of K3s and of serving groups from an allow-list of commands and files.
  - Removes private keys, tokens, passwords and the tokens of K3s before the text leaves the host.
  - What cannot be read is named in RV(missing). It never makes the module fail.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.sysfs, gb10.cluster.readonly]
options:
  limit_kib:
    description: Size in KiB up to which the end of each text is kept.
    type: int
    default: 512
  root:
    description: Root of the host's file system.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Read the host for a support bundle
  gb10.cluster.support_info:
  register: support_bundle_host
"""

RETURN = r"""
texts:
  description: The texts by name, without secrets.
  returned: always
  type: dict
missing:
  description: Why a text, or a part of it, is missing, by the name of the text.
  returned: always
  type: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._support.sources import gather

PLACES = {"proc": "proc", "etc": "etc", "log": "var/log", "lib": "var/lib"}
# A command that takes longer, for example on a host whose GPU driver hangs, is recorded as missing.
SECONDS = "30"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "root": {"type": "path", "default": "/"},
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
    roots = {"sysfs": Path(module.params["sysfs_root"])} | {name: root / place for name, place in PLACES.items()}
    texts, missing = gather(run, roots, 1024 * module.params["limit_kib"])
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
