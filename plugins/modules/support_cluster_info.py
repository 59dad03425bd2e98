#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: support_cluster_info
short_description: Read what a support bundle contains of a cluster
version_added: 0.1.0
description:
  - Reads nodes, pods with their transport conditions, events, and the last lines of the logs of serving groups and of
    pods in C(kube-system). It never reads a Secret.
  - Removes private keys, tokens and passwords, and the values of environment variables. Only those of NCCL, Gloo, UCX,
    CUDA, NVIDIA and PyTorch are kept.
  - What cannot be read is named in RV(missing), for example because there is no cluster. It is never an error.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes
extends_documentation_fragment: [gb10.cluster.cluster, gb10.cluster.readonly]
options:
  limit_kib:
    description: Size in KiB up to which the end of each text is kept.
    type: int
    default: 512
"""

EXAMPLES = r"""
- name: Read the cluster for a support bundle
  gb10.cluster.support_cluster_info:
    kubeconfig: ~/.kube/config
    context: gb10
  delegate_to: localhost
  become: false
  register: support_bundle_cluster
"""

RETURN = r"""
texts:
  description: The texts by name, without secrets.
  returned: always
  type: dict
missing:
  description: Why a text is missing, by the name of the text.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._support.cluster import gather


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CLUSTER_SPEC, "limit_kib": {"type": "int", "default": 512}}, supports_check_mode=True
    )
    options = module.params
    try:
        texts, missing = gather(Cluster(options["kubeconfig"], options["context"]), 1024 * options["limit_kib"])
    except ClusterError as error:
        texts, missing = {}, {"cluster": str(error)}
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
