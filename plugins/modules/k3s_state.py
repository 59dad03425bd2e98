#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import archive, exchange


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["replaced", "aside", "kept", "settled"], "required": True},
            "data_dir": {"type": "path", "required": True},
            "src": {"type": "path"},
            "names": {"type": "list", "elements": "str", "default": ["db", "tls", "cred"], "choices": [*archive.STATE]},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "replaced", ["src"])],
        supports_check_mode=True,
    )
    root, data_dir, state = Path(module.params["root"]), module.params["data_dir"], module.params["state"]
    result: dict[str, Any] = {"changed": True, "snapshot": ""}
    if module.check_mode:
        module.exit_json(**result)
    found = exchange.places(root, data_dir)
    try:
        if state == "replaced":
            result["snapshot"] = exchange.replace(root, data_dir, Path(module.params["src"]))
        elif state == "aside":
            result["changed"] = exchange.set_aside(root, data_dir, module.params["names"])
        elif state == "kept":
            result["changed"] = exchange.put_back(found)
        else:
            result["changed"] = exchange.settle(found)
    except (archive.Refused, archive.Damaged, OSError) as error:
        module.fail_json(msg=f"The state of this server was not exchanged: {error}", changed=False)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
