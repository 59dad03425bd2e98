#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cabling_info
short_description: Find which machine is at the other end of each fabric port
version_added: 0.1.0
description:
  - Pings all IPv6 nodes of the link of every physical function and reads which MAC addresses answer. Needs no address
    on the port and changes nothing. Takes about three seconds.
  - Also reads speed, PCIe link and MTU of each port, and the addresses of all interfaces.
  - Where C(lldpd) is installed, it names the switch and its port. If its service does not run, an instance of it runs
    for five seconds and announces the host on these ports only. The service stays as it is.
  - Sets the fact C(gb10_cabling), which M(gb10.cluster.cabling_report) compares with those of the other hosts.
  - Needs root, iproute2 and iputils-ping on the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.sysfs, gb10.cluster.readonly]
"""

EXAMPLES = r"""
- name: Find the neighbours of every port
  gb10.cluster.cabling_info:
"""

RETURN = r"""
ansible_facts:
  description:
    - C(gb10_cabling), a list with one entry per port. C(mtu_passes) is the MTU that reaches a neighbour, 0 if none is.
      C(link_local) is false if the port has no IPv6 address by which neighbours could be found.
    - C(gb10_addresses), the addresses with prefix of every interface.
  returned: success
  type: dict
  sample:
    gb10_cabling:
      - {name: enp1s0f0np0, mac: "48:b0:2d:00:01:00", carrier: true, speed_mbps: 200000, pcie_width: 4,
         neighbours: ["48:b0:2d:00:02:00"], mtu: 9000, mtu_passes: 9000, link_local: true}
    gb10_addresses: {enP7s7: [192.168.10.11/24]}
msg:
  description: The number of ports and of those that see a neighbour.
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import neighbours
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.devices import read_ports
from ansible_collections.gb10.cluster.plugins.module_utils._sriov.physical_functions import read_pfs


def main() -> None:
    """Look at every port."""
    module = AnsibleModule(argument_spec={"sysfs_root": {"type": "path", "default": "/sys"}}, supports_check_mode=True)
    root = module.params["sysfs_root"]
    if remedy := system.root_remedy():
        # ping and lldpd fail, and every port would seem to see nobody.
        module.fail_json(changed=False, msg=f"The neighbours of the ports were not looked for. {remedy}")
    try:
        ports = neighbours.look_everywhere(read_ports(Path(root), read_pfs(root), {}))
        own = {name: neighbours.addresses(link) for name, link in system.links().items()}
    except (system.HostError, OSError) as error:
        module.fail_json(changed=False, msg=system.explain(error))
    seeing = sum(bool(port["neighbours"]) for port in ports)
    msg = f"{len(ports)} ports, {seeing} of them see a neighbour"
    module.exit_json(changed=False, ansible_facts={"gb10_cabling": ports, "gb10_addresses": own}, msg=msg)


if __name__ == "__main__":
    main()
