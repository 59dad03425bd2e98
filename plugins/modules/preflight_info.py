#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.commands import runner
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.facts import Roots, read_host
from ansible_collections.gb10.cluster.plugins.module_utils._sriov.physical_functions import pf_facts, read_pfs


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "paths": {"type": "list", "elements": "str", "default": ["/var/lib"]},
            "models_dir": {"type": "str", "default": ""},
            "cache_dir": {"type": "str", "default": ""},
            "controller_time": {"type": "float"},
            "k3s_binary": {"type": "path", "default": "/usr/local/bin/k3s"},
            # The action of this module reads it: a host that can't be read can't run the module either.
            "keep_unread": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params, run = module.params, runner(module)
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
