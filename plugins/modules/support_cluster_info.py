#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._support.cluster import gather


def main() -> None:
    own = {"limit_kib": {"type": "int", "default": 512}, "namespace": {"type": "str", "required": True}}
    module = AnsibleModule(argument_spec={**CLUSTER_SPEC, **own}, supports_check_mode=True)
    options = module.params
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        texts, missing = gather(cluster, 1024 * options["limit_kib"], options["namespace"])
    except ClusterError as error:
        texts, missing = {}, {"cluster": str(error)}
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
