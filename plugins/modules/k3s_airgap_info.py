#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_airgap_info
short_description: Verify an air-gap directory of K3s and list its files
version_added: 0.1.0
description:
  - Finds the binary and the image archives of one architecture by their names in the release, and verifies checksums.
  - Fails with all findings at once if a file is missing, has no checksum, or does not match it.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  path:
    description: The directory.
    type: path
    required: true
  arch:
    description: The architecture of the hosts.
    type: str
    choices: [amd64, arm64]
    required: true
"""

EXAMPLES = r"""
- name: Verify the directory on the controller
  gb10.cluster.k3s_airgap_info:
    path: /srv/k3s
    arch: arm64
  delegate_to: localhost
"""

RETURN = r"""
binary:
  description: The K3s binary, or an empty string.
  returned: always
  type: str
images:
  description: The image archives, sorted.
  returned: always
  type: list
  elements: str
sums:
  description: The sha256 of the binary and of the image archives, by file name.
  returned: always
  type: dict
findings:
  description: Missing and damaged files, each with C(rule), C(key), C(reason) and C(remedy).
  returned: always
  type: list
  elements: dict
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "arch": {"type": "str", "choices": ["amd64", "arm64"], "required": True},
        },
        supports_check_mode=True,
    )
    try:
        found = k3s.read_airgap(Path(module.params["path"]), module.params["arch"])
    except OSError as error:
        advice = "Make it readable for the user who runs Ansible"
        module.fail_json(msg=f"{error}. {advice}.", changed=False, binary="", images=[], sums={}, findings=[])
    result: dict[str, Any] = {
        "changed": False,
        "binary": found.binary,
        "images": list(found.images),
        "sums": found.sums,
        "findings": [finding.as_dict() for finding in found.findings],
        "msg": findings.format_findings(found.findings) or f"{1 + len(found.images)} files match their checksums.",
    }
    if findings.has_errors(found.findings):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
