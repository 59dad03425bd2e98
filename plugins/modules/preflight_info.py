#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_info
short_description: Read the facts that preflight checks
version_added: 0.1.0
description:
  - Reads user, system, kernel, GPU, PCIe, firmware, ports, RDMA, cgroup, clock, space, netplan, firewall, listeners,
    network namespaces and an installed Kubernetes.
  - Changes nothing and checks nothing. M(gb10.cluster.preflight_report) checks the facts of all hosts together.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs, gb10.cluster.shared.readonly]
options:
  paths:
    description: Directories whose free space is read. They need not exist yet.
    type: list
    elements: str
    default: [/var/lib]
  models_dir:
    description: Directory of the models, whose sizes are read. It need not exist yet.
    type: str
    default: ''
  cache_dir:
    description: Directory of compiled kernels (O(gb10.cluster.sglang#role:main:sglang_cache_dir)), in which servers
      keep what their loads took.
    type: str
    default: ''
  loads_only:
    description: Read only what loads took, into the fact C(gb10_loads); the other facts stay as they are.
    type: bool
    default: false
  controller_time:
    description:
      - Seconds since 1970 on the controller, just before the task. If omitted, the host's clock is not compared.
      - The measured offset includes the time that the task needs to start, so ignore a few seconds.
    type: float
  k3s_binary:
    description: Path at which an installed K3s is expected.
    type: path
    default: /usr/local/bin/k3s
  keep_unread:
    description:
      - A host that can't be read, for example because ssh does not know its key, stays in the play without facts,
        instead of failing alone. M(gb10.cluster.preflight_report) then reports why, together with the errors of all
        other hosts, and fails.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read the host
  gb10.cluster.preflight_info:
    paths: [/var/lib, /models]
    controller_time: "{{ now().timestamp() }}"
"""

RETURN = r"""
ansible_facts:
  description:
    - C(gb10_preflight) with everything that was read; values that could not be read are null. With
      O(keep_unread), it is null itself and C(gb10_preflight_unread) has the error if the host can't be read,
      or what the login printed.
    - Also the facts of M(gb10.cluster.pf_info).
    - With O(loads_only), only C(gb10_loads), a list that is empty if the host can't be read.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.physical_functions import pf_facts, read_pfs
from ansible_collections.gb10.cluster.plugins.module_utils._node.commands import runner
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import Roots, read_host, read_loads


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "paths": {"type": "list", "elements": "str", "default": ["/var/lib"]},
            "models_dir": {"type": "str", "default": ""},
            "cache_dir": {"type": "str", "default": ""},
            "loads_only": {"type": "bool", "default": False},
            "controller_time": {"type": "float"},
            "k3s_binary": {"type": "path", "default": "/usr/local/bin/k3s"},
            # The action of this module reads it: a host that can't be read can't run the module either.
            "keep_unread": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params, run = module.params, runner(module)
    if params["loads_only"]:
        loads = read_loads(params["cache_dir"])
        module.exit_json(changed=False, ansible_facts={"gb10_loads": loads}, msg=f"{len(loads)} loads are known")
    roots = Roots(sysfs=params["sysfs_root"])
    given = params["controller_time"], params["k3s_binary"], params["models_dir"], params["cache_dir"]
    facts = read_host(roots, params["paths"], run, *given)
    ports = pf_facts(read_pfs(roots.sysfs, run(["ip", "-d", "-j", "link", "show"]).output))
    module.exit_json(
        changed=False,
        ansible_facts={"gb10_preflight": facts, **ports},
        msg=f"{facts['os']['name']}, kernel {facts['kernel']}, {len(facts['pfs'])} physical functions",
    )


if __name__ == "__main__":
    main()
