#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import airgap


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
        argument_spec={
            "path": {"type": "path", "required": True},
            "arch": {"type": "str", "choices": ["amd64", "arm64"], "required": True},
        },
        supports_check_mode=True,
    )
    try:
        found = airgap.read_airgap(Path(module.params["path"]), module.params["arch"])
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
