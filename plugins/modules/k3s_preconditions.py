#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_preconditions
short_description: Check whether K3s can be put on a host
version_added: 0.1.0
description:
  - Looks at cgroups, swap, ports, the default route, the clock and earlier installations before anything is changed.
  - Fails with all findings at once when one of them is an error. It never changes the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  role:
    description: What the host is to become.
    type: str
    choices: [server, agent]
    required: true
  version:
    description: The K3s release that is wanted, such as V(v1.36.4+k3s1).
    type: str
    required: true
  kubelet_args:
    description: The arguments that the kubelet is going to get, each as V(key=value).
    type: list
    elements: str
    default: []
  embedded_etcd:
    description: Whether the servers keep their state in the embedded etcd, which needs two more ports.
    type: bool
    default: false
  reference_epoch:
    description: Seconds since 1970 on the controller; V(0) skips the comparison of the clocks.
    type: float
    default: 0
  clock_skew:
    description: How many seconds the host's clock may differ.
    type: float
    default: 60
  upgrading:
    description: Whether another installed version is about to be replaced on purpose.
    type: bool
    default: false
  binary:
    description: Where an installed K3s is looked for.
    type: path
    default: /usr/local/bin/k3s
  root:
    description: The directory below which everything is read.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Check the host
  gb10.cluster.k3s_preconditions:
    role: agent
    version: v1.36.4+k3s1
"""

RETURN = r"""
findings:
  description: All findings, errors first; each with C(severity), C(rule), C(key), C(value), C(reason) and C(remedy).
  returned: always
  type: list
  elements: dict
installed:
  description: Whether this collection has installed K3s on the host.
  returned: always
  type: bool
installed_version:
  description: The installed release, or an empty string.
  returned: always
  type: str
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings as common_findings
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import host


def installed_version(module: AnsibleModule, binary: str) -> str:
    """Ask the installed binary for its version; an empty string when there is none that answers."""
    if not Path(binary).exists():
        return ""
    _status, output, _errors = module.run_command([binary, "--version"])
    return host.parse_k3s_version_output(output)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True, "choices": ["server", "agent"]},
            "version": {"type": "str", "required": True},
            "kubelet_args": {"type": "list", "elements": "str", "default": []},
            "embedded_etcd": {"type": "bool", "default": False},
            "reference_epoch": {"type": "float", "default": 0},
            "clock_skew": {"type": "float", "default": 60},
            "upgrading": {"type": "bool", "default": False},
            "binary": {"type": "path", "default": "/usr/local/bin/k3s"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        state = host.read_host(Path(options["root"]), installed_version(module, options["binary"]), time.time())
        findings = host.judge(
            state,
            role=options["role"],
            version=options["version"],
            kubelet_args=options["kubelet_args"],
            embedded_etcd=options["embedded_etcd"],
            reference_epoch=options["reference_epoch"],
            clock_skew=options["clock_skew"],
            upgrading=options["upgrading"],
        )
    except ValueError as error:
        module.fail_json(msg=str(error), findings=[], installed=False, installed_version="")
    result: dict[str, Any] = {
        "changed": False,
        "findings": [finding.as_dict() for finding in common_findings.sort_findings(findings)],
        "installed": any(state.units.values()),
        "installed_version": state.installed_version,
        "msg": common_findings.format_findings(findings) or "K3s can be installed here.",
    }
    if common_findings.has_errors(findings):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
