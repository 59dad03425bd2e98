#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC

try:
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.runner import run_module

    MISSING = ""
except ImportError:
    MISSING = missing_required_lib("kubernetes.core")


class _Core:
    """What kubernetes.core uses of AnsibleModule, for module api_apply."""

    def __init__(self, module: Any) -> None:
        self.check_mode, self._diff = module.check_mode, module._diff
        self.warn, self.fail_json, self._exit = module.warn, module.fail_json, module.exit_json
        self.params = {
            "kubeconfig": module.params["kubeconfig"],
            "context": module.params["context"],
            "resource_definition": module.params["objects"],
            "apply": True,
            "server_side_apply": {"field_manager": module.params["manager"], "force_conflicts": True},
            # The API server changes these by itself.
            "hidden_fields": ["metadata.managedFields", "status"],
        }

    def exit_json(self, **result: Any) -> None:
        """End the module. kubernetes.core gives each of several objects a difference; Ansible shows only the task's."""
        each = result["result"].get("results", [result])
        self._exit(
            changed=result["changed"],
            diff=[_difference(one) for one in each if one["changed"] and one.get("diff")],
            versions=[one["result"]["metadata"].get("resourceVersion", "") for one in each],
            warnings=[text for one in each for text in one.get("warnings", [])],
        )


def _difference(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ansible shows of a changed object; of a Secret only its name."""
    about, kind = result["result"]["metadata"], result["result"]["kind"]
    name = f"{kind} {'/'.join(filter(None, [about.get('namespace'), about['name']]))}"
    secret = {"before": "", "after": "(not shown)\n"} if kind == "Secret" else {}
    return {**result["diff"], **secret, "before_header": name, "after_header": name}


def apply(module: Any) -> None:
    """End an AnsibleModule that has the options of module api_apply with the result of applying its objects."""
    if MISSING:
        module.fail_json(msg=MISSING)
    try:
        run_module(AnsibleK8SModule(module_class=lambda: _Core(module)))
    except CoreException as error:
        module.fail_json(msg=str(error))


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
        argument_spec={
            **CLUSTER_SPEC,
            "manager": {"type": "str", "required": True},
            "objects": {"type": "list", "elements": "raw", "required": True},
        },
        supports_check_mode=True,
    )
    apply(module)


if __name__ == "__main__":
    main()
