#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import airgap


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "choices": ["k3s", "k3s-agent"], "required": True},
            "files": {"type": "list", "elements": "path", "required": True},
            "sums": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    command = ["systemctl", "show", "--timestamp=unix", "--property=ActiveState,UnitFileState,ExecMainStartTimestamp"]
    code, output, error = module.run_command([*command, f"{module.params['name']}.service"])
    if code != 0:
        module.fail_json(msg=f"systemctl show failed: {error.strip()}", changed=False)
    properties = airgap.parse_properties(output)
    changed = [Path(name).stat().st_ctime for name in module.params["files"] if Path(name).is_file()]
    module.exit_json(
        changed=False,
        active=properties.get("ActiveState") == "active",
        running=properties.get("ActiveState") in airgap.RUNNING,
        enabled=properties.get("UnitFileState") == "enabled",
        held=[name for name, wanted in module.params["sums"].items() if airgap.holds(Path(name), wanted)],
        stale=airgap.is_stale(properties, changed),
    )


if __name__ == "__main__":
    main()
