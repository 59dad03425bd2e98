#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_service_info
short_description: Report whether K3s runs with the files that are on disk
version_added: 0.1.0
description:
  - Compares the start time of the service with the last change of its files.
  - This detects a run that was interrupted after writing a file and before restarting the service, however long ago.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  name:
    description: Name of the service.
    type: str
    choices: [k3s, k3s-agent]
    required: true
  files:
    description: Files that the service reads at its start. Missing files are ignored.
    type: list
    elements: path
    required: true
  sums:
    description: Files of an installation with their sha256 digests.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Compare the service with its files
  gb10.cluster.k3s_service_info:
    name: k3s-agent
    files: [/usr/local/bin/k3s, /etc/rancher/k3s/config.yaml]
"""

RETURN = r"""
active:
  description: Whether the service runs.
  returned: always
  type: bool
running:
  description: Whether the service runs or is starting.
  returned: always
  type: bool
enabled:
  description: Whether the service starts with the host.
  returned: always
  type: bool
held:
  description: The files of O(sums) that the host has with these digests.
  returned: always
  type: list
  elements: str
stale:
  description: Whether the service runs and a file has changed since its start.
  returned: always
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s


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
    properties = k3s.parse_properties(output)
    changed = [Path(name).stat().st_ctime for name in module.params["files"] if Path(name).is_file()]
    module.exit_json(
        changed=False,
        active=properties.get("ActiveState") == "active",
        running=properties.get("ActiveState") in k3s.RUNNING,
        enabled=properties.get("UnitFileState") == "enabled",
        held=[name for name, wanted in module.params["sums"].items() if k3s.holds(Path(name), wanted)],
        stale=k3s.is_stale(properties, changed),
    )


if __name__ == "__main__":
    main()
