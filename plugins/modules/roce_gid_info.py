#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.module_utils._rdma.gids import check_expected, read_devices


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
