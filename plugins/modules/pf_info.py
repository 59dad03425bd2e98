#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._sriov.physical_functions import pf_facts, read_pfs


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
