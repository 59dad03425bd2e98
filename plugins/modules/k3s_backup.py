#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sqlite3
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import archive, save


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data_dir": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "single": {"type": "bool", "required": True},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if module.check_mode:
        module.exit_json(changed=True, size=0)
    try:
        content = save.write(Path(options["root"]), options["data_dir"], Path(options["dest"]), options["single"])
    except (save.Unusable, archive.Refused, archive.Damaged, sqlite3.Error, OSError) as error:
        module.fail_json(msg=f"The state of this server was not saved: {error}. K3s was not stopped.", changed=False)
    module.exit_json(changed=True, size=content.size)


if __name__ == "__main__":
    main()
