#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pf_info
short_description: List the physical functions of a host and their capabilities
version_added: 0.1.0
description:
  - Reads which netdevs can have VFs, how many VFs, their RDMA device and the largest MTU that the driver accepts.
  - Sets the facts that M(gb10.cluster.fabric_plan) needs for its plan.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs, gb10.cluster.shared.readonly]
"""

EXAMPLES = r"""
- name: List the PFs of the host
  gb10.cluster.pf_info:
"""

RETURN = r"""
pfs:
  description: The PFs by name.
  returned: always
  type: list
  elements: dict
  sample:
    - {name: enp1s0f0np0, pci_address: "0000:01:00.0", total_vfs: 8, num_vfs: 0, rdma_device: rocep1s0f0, max_mtu: 9978}
ansible_facts:
  description: C(gb10_pf_totalvfs), C(gb10_pf_max_mtu), C(gb10_pf_rdma), C(gb10_pf_pci); each a dictionary by PF name.
  returned: always
  type: dict
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.physical_functions import pf_facts, read_pfs


def main() -> None:
    module = AnsibleModule(
        argument_spec={"sysfs_root": {"type": "path", "default": "/sys"}},
        supports_check_mode=True,
    )
    # Without iproute2 (in a container) the MTU limits stay unknown, and the planner does not check them.
    ip = module.get_bin_path("ip")
    links = module.run_command([ip, "-d", "-j", "link", "show"])[1] if ip else "[]"
    pfs = read_pfs(module.params["sysfs_root"], links)
    module.exit_json(
        changed=False,
        pfs=[asdict(pf) for pf in pfs],
        ansible_facts=pf_facts(pfs),
        msg=f"{len(pfs)} physical functions: {', '.join(pf.name for pf in pfs) or 'none'}",
    )


if __name__ == "__main__":
    main()
