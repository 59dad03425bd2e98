#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import SELECTION_SPEC, find_containers
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.environment_pod import (
    PodEnv,
    lint_environments,
    read_environments,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "pods": {"type": "dict", "options": SELECTION_SPEC},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "sysfs_root": {"type": "path", "default": "/sys"},
            "env": {"type": "dict"},
            "expect_rdma": {"type": "bool", "default": True},
            "nccl_version": {"type": "str"},
        },
        required_one_of=[["pods", "env"]],
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "findings": [], "environments": {}}
    found: dict[str, PodEnv] = {}
    if options["env"] is not None:
        found[""] = PodEnv({key: str(value) for key, value in options["env"].items()})
    if options["pods"]:
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            found |= read_environments(find_containers(cluster, **options["pods"]), options["sysfs_root"])
        except ClusterError as error:
            module.fail_json(msg=str(error), **result)
    findings = lint_environments(found, options["expect_rdma"], options["nccl_version"])
    result["findings"] = [finding.as_dict() for finding in findings]
    result["environments"] = {name: seen.effective for name, seen in found.items()}
    result["msg"] = format_findings(findings) or "nothing is wrong with the NCCL environment"
    if has_errors(findings):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
