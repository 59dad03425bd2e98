#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import archive


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "data_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    data_dir = module.params["data_dir"]
    told = {"changed": False, "damaged": "", "refused": "", "lacks": [], "single": False}
    try:
        content = archive.read(Path(module.params["path"]), data_dir)
    except archive.Damaged as error:
        module.exit_json(**{**told, "damaged": str(error)})
    except archive.Refused as error:
        module.exit_json(**{**told, "refused": str(error)})
    except OSError as error:
        module.fail_json(msg=str(error), changed=False)
    single, lacking = archive.is_single(content, data_dir), archive.lacks(content, data_dir)
    module.exit_json(**{**told, "lacks": lacking, "single": single})


if __name__ == "__main__":
    main()
