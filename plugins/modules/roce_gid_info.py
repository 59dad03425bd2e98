#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_gid_info
short_description: List RDMA devices with ports and GIDs, and check planned addresses
version_added: 0.1.0
description:
  - Reads every RDMA device from sysfs, with the state, rate, MTU and GID table of its ports.
  - With O(expect) it fails unless every planned address has a GID of type RoCE v2. It reports the index of that GID. Do
    not pin the index anywhere, because it changes when addresses or firmware change.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs, gb10.cluster.shared.readonly]
options:
  expect:
    description:
      - Addresses that must have a RoCE v2 GID. The module fails with all findings at once if one of them has none.
      - Each item has C(rdma_device), C(address) and optionally C(address6), without prefix length. Other keys are
        ignored, so the VFs of a fabric plan can be passed unchanged.
    type: list
    elements: dict
    default: []
  mtu:
    description: The smallest MTU, in bytes, that the netdevs of the expected devices may have.
    type: int
  pods:
    description: Whether to read the MTUs inside the pods of this host as well, for which the user must be root.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: List the RDMA devices of this host
  gb10.cluster.roce_gid_info:

- name: Check that every VF of the plan has the GID of its address
  gb10.cluster.roce_gid_info:
    expect: "{{ fabric.hosts[inventory_hostname].vfs }}"
    mtu: "{{ fabric.mtu }}"
  vars:
    fabric: "{{ ansible_facts['gb10_fabric_plan'] }}"
"""

RETURN = r"""
devices:
  description: The RDMA devices by name.
  returned: always
  type: list
  elements: dict
  sample:
    - name: rocep1s0f0v0
      firmware: 28.45.4028
      hca_type: MT4129
      netdevs: [enp1s0f0v0]
      ports:
        - port: 1
          state: ACTIVE
          phys_state: LinkUp
          rate_gbps: 200.0
          link_layer: Ethernet
          mtu: 9000
          active_mtu: 4096
          gids:
            - index: 3
              gid: "0000:0000:0000:0000:0000:ffff:0a64:0001"
              type: RoCE v2
              ndev: enp1s0f0v0
              ipv4: 10.100.0.1
expected:
  description: The result for every item of O(expect), with the index of its RoCE v2 GID.
  returned: always
  type: list
  elements: dict
  sample: [{rdma_device: rocep1s0f0v0, address: 10.100.0.1, found: true, index: 3}]
pod_mtus:
  description: MTU in bytes of every interface in the pods, by C(namespace/pod) and interface; empty without O(pods).
  returned: always
  type: dict
  sample: {gb10-serving/gemma-0-0: {lo: 65536, net1: 9000}}
satisfied:
  description: Whether all expected GIDs exist.
  returned: always
  type: bool
findings:
  description: What is wrong, each with C(rule), C(key), C(reason) and C(remedy).
  returned: always
  type: list
  elements: dict
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import check_expected, read_devices
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system


def pod_mtus() -> dict[str, dict[str, int]]:
    """Return the MTU of every interface inside the pods of this host, by pod. Raise HostError."""
    return {
        holder.pod: {name: int(link["mtu"]) for name, link in holder.links.items()}
        for holder in netns.holders()
        if holder.pod
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "expect": {"type": "list", "elements": "dict", "default": []},
            "mtu": {"type": "int"},
            "pods": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    devices = read_devices(module.params["sysfs_root"])
    expected, findings = check_expected(devices, module.params["expect"], module.params["mtu"])
    result: dict[str, Any] = {
        "changed": False,
        "devices": [asdict(device) for device in devices],
        "expected": [asdict(item) for item in expected],
        "pod_mtus": {},
        "satisfied": not findings,
        "findings": [finding.as_dict() for finding in findings],
    }
    try:
        result["pod_mtus"] = pod_mtus() if module.params["pods"] else {}
    except system.HostError as error:
        module.fail_json(msg=str(error), **result)
    if findings:
        module.fail_json(msg=f"RoCE is not ready on this host:\n{format_findings(findings)}", **result)
    module.exit_json(msg=f"{len(devices)} RDMA devices, {len(expected)} planned addresses with a RoCE v2 GID", **result)


if __name__ == "__main__":
    main()
