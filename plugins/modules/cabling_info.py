#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import neighbours
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.devices import read_ports
from ansible_collections.gb10.cluster.plugins.module_utils._sriov.physical_functions import read_pfs


def main() -> None:
    module = AnsibleModule(argument_spec={"sysfs_root": {"type": "path", "default": "/sys"}}, supports_check_mode=True)
    root = module.params["sysfs_root"]
    if remedy := system.root_remedy():
        # ping and lldpd fail, and every port would seem to see nobody.
        module.fail_json(changed=False, msg=f"The neighbours of the ports were not looked for. {remedy}")
    try:
        ports = neighbours.look_everywhere(read_ports(Path(root), read_pfs(root), {}, {}))
        own = {name: list(system.addresses(link)) for name, link in system.links().items()}
    except (system.HostError, OSError) as error:
        module.fail_json(changed=False, msg=system.explain(error))
    seeing = sum(bool(port["neighbours"]) for port in ports)
    msg = f"{len(ports)} ports, {seeing} of them see a neighbour"
    module.exit_json(changed=False, ansible_facts={"gb10_cabling": ports, "gb10_addresses": own}, msg=msg)


if __name__ == "__main__":
    main()
