#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import (
    SELECTION_SPEC,
    find_containers,
    run_in_each,
)
from ansible_collections.gb10.cluster.plugins.module_utils._rdma import counters


def script(options: dict[str, Any]) -> list[str]:
    return ["/bin/sh", "-c", counters.SCRIPT, "sh", options["sysfs_root"], options["net_root"]]


def of_host(module: AnsibleModule, options: dict[str, Any]) -> dict[str, Any]:
    """Return the counters of this host as the only source."""
    _status, output, _errors = module.run_command(script(options), check_rc=True)
    return {"host": counters.parse_counters(output)}


def of_pods(options: dict[str, Any]) -> dict[str, Any]:
    """Return the counters of every matching pod, as its container reads them; raises ClusterError."""
    containers = find_containers(Cluster(options["kubeconfig"], options["context"]), **options["pods"])
    return {pod: counters.parse_counters(ran.stdout) for pod, ran in run_in_each(containers, script(options)).items()}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "net_root": {"type": "path", "default": "/sys"},
            "devices": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "agree_with": {"type": "str", "choices": ["rdma", "tcp"]},
            "min_bytes": {"type": "int", "default": 1000000},
            "pods": {"type": "dict", "options": SELECTION_SPEC},
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "before": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "sources": {}, "moved": {}, "rdma_bytes": 0, "tcp_bytes": 0}
    result["agrees"] = None
    try:
        result["sources"] = of_pods(options) if options["pods"] else of_host(module, options)
    except ClusterError as error:
        module.fail_json(msg=str(error), **result)
    result["msg"] = f"{len(result['sources'])} sources read"
    if options["before"] is not None:
        moved = counters.moved_since(options["before"], result["sources"], options["devices"], options["interfaces"])
        result |= {"moved": moved.sources, "rdma_bytes": moved.rdma_bytes, "tcp_bytes": moved.tcp_bytes}
        result["msg"] = moved.msg
        if options["agree_with"]:
            result["agrees"], against = counters.agreement(options["agree_with"], moved, options["min_bytes"])
            result["msg"] = against or moved.msg
    if result["agrees"] is False:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
