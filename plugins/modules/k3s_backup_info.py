#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_backup_info
short_description: Check what the archive of a backup contains
version_added: 0.1.0
description:
  - Reads an archive that playbook backup wrote, without unpacking it, and reports whatever such an archive cannot
    contain.
  - An archive has files of K3s's configuration and state, and directories. Links, devices, absolute names, C(..), other
    paths, the setuid bit, more than 20,000 files and more than 64 GiB are refused. Runs on the controller.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  path:
    description: The archive.
    type: path
    required: true
  data_dir:
    description: The data directory of the K3s that was backed up.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Check the backup
  gb10.cluster.k3s_backup_info:
    path: results/backups/gb10-20261128T100000.tar.gz
    data_dir: /var/lib/rancher/k3s
  delegate_to: localhost
"""

RETURN = r"""
damaged:
  description: Why the file cannot be read; empty if it can.
  returned: success
  type: str
refused:
  description: The first thing that a backup cannot contain; empty if there is none.
  returned: success
  type: str
lacks:
  description: What a whole backup has and this file has not.
  returned: success
  type: list
  elements: str
single:
  description: Whether it is the backup of a single server.
  returned: success
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s_archive


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
        content = k3s_archive.read(Path(module.params["path"]), data_dir)
    except k3s_archive.Damaged as error:
        module.exit_json(**{**told, "damaged": str(error)})
    except k3s_archive.Refused as error:
        module.exit_json(**{**told, "refused": str(error)})
    except OSError as error:
        module.fail_json(msg=str(error), changed=False)
    single, lacking = k3s_archive.is_single(content, data_dir), k3s_archive.lacks(content, data_dir)
    module.exit_json(**{**told, "lacks": lacking, "single": single})


if __name__ == "__main__":
    main()
