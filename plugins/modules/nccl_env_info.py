#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_env_info
short_description: Check the environment that NCCL sees
version_added: 0.1.0
description:
  - Reads the NCCL variables of running pods, their C(~/.nccl.conf) and C(/etc/nccl.conf), and the RDMA devices and
    interfaces that the pods see; or checks an environment that is given as an option.
  - Reports variables that no NCCL release reads, values without effect, contradictions, and names of the wrong kind of
    device.
  - Does not read the variables of other programs.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes (only to read pods)
extends_documentation_fragment:
  - gb10.cluster.pods
  - gb10.cluster.readonly
options:
  sysfs_root:
    description: Where the RDMA part of sysfs is mounted in the pods.
    type: path
    default: /sys
  env:
    description: An environment to check without a pod.
    type: dict
  expect_rdma:
    description: Whether NCCL is expected to use RDMA. If false, it is expected to use TCP.
    type: bool
    default: true
  nccl_version:
    description: The NCCL release that will read the environment, such as V(2.28.9).
    type: str
"""

EXAMPLES = r"""
- name: Judge an environment before it is used
  gb10.cluster.nccl_env_info:
    env:
      NCCL_DEBUG: INFO
      NCCL_IB_HCA: "=rocep1s0f0v0"
    nccl_version: 2.28.9

- name: Judge what the ranks really run with
  gb10.cluster.nccl_env_info:
    kubeconfig: ~/.kube/config
    pods:
      namespace: gb10-serving
      label_selector: gb10.cluster/instance=gemma-4-31b-it,gb10.cluster/rank
  delegate_to: localhost
"""

RETURN = r"""
findings:
  description: Everything that is wrong or worth knowing, with severity, key, value, reason, remedy and pod.
  returned: always
  type: list
  elements: dict
environments:
  description: The variables that NCCL uses in each pod, including those from conf files.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import SELECTION_SPEC, find_containers
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.environment_pod import (
    PodEnv,
    lint_environments,
    read_environments,
)


def main() -> None:
    """Read and check the environments; fail if a finding is an error."""
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
