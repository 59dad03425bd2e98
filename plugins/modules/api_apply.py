#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: api_apply
short_description: Apply objects on the API server, with one field manager
version_added: 0.1.0
description:
  - Calls the collection kubernetes.core, which applies on the server.
  - A field that another manager has set otherwise, such as Argo CD, ends the module with the names of both. A field
    that somebody set by hand, for example with C(kubectl edit), is set again, with a warning.
  - On the controller it needs no Python of its own, and shows the difference of every object.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster]
attributes:
  check_mode: {description: The API server answers what it would store., support: full}
  diff_mode: {description: Shows the fields of each object that change; of a Secret only its name., support: full}
options:
  manager:
    description: The field manager, such as V(gb10.cluster.multus).
    type: str
    required: true
  objects:
    description: Objects, or texts in YAML with one or more of them.
    type: list
    elements: raw
    required: true
  take_fields:
    description: Take over the fields that another manager has set otherwise.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Create a namespace
  gb10.cluster.api_apply:
    kubeconfig: ~/.kube/config
    context: gb10
    manager: example
    objects:
      - apiVersion: v1
        kind: Namespace
        metadata: {name: serving}
  delegate_to: localhost

- name: Apply the objects of two templates
  gb10.cluster.api_apply:
    kubeconfig: ~/.kube/config
    context: gb10
    manager: example
    objects: "{{ query('ansible.builtin.template', 'namespace.yml.j2', 'daemonset.yml.j2') }}"
  delegate_to: localhost
"""

RETURN = r"""
versions:
  description: The resource version of each object, in their order; empty for one that does not exist yet in check mode.
  returned: success
  type: list
  elements: str
  sample: ["4711"]
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC

try:
    import yaml
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException
    from ansible_collections.kubernetes.core.plugins.module_utils.k8s.runner import run_module

    MISSING = ""
except ImportError:
    MISSING = missing_required_lib("kubernetes.core")


# Managers that set a field once and do not set it again: kubectl's commands but for apply, kubernetes.core when it
# patches, whoever made an object before its first apply, and other roles of this collection.
_ONCE = re.compile(
    r"kubectl-(?!client-side-apply$|last-applied$).*|OpenAPI-Generator|before-first-apply|gb10\.cluster\..*"
)


def conflict(error: str) -> list[tuple[str, str]]:
    """Return fields and their other managers, from the API server's answer to an apply; none for any other error."""
    try:
        said = json.loads(error[error.index("{") : error.rindex("}") + 1])
        causes = [one for one in said["details"]["causes"] if one["reason"] == "FieldManagerConflict"]
    except (ValueError, KeyError, TypeError):
        return []
    found = [(one["field"], re.search(r'conflict with "([^"]*)"', one["message"])) for one in causes]
    return [(field, name[1]) for field, name in found if name]


class _Core:
    """What kubernetes.core uses of AnsibleModule, for module api_apply.

    ``force`` takes fields of other managers, ``note`` is a warning about them. A failure is a CoreException.
    """

    def __init__(self, module: Any, force: bool, note: str = "") -> None:
        self.check_mode, self._diff = module.check_mode, module._diff
        self.warn, self._exit, self._note = module.warn, module.exit_json, note
        self.params = {
            "kubeconfig": module.params["kubeconfig"],
            "context": module.params["context"],
            "resource_definition": module.params["objects"],
            "apply": True,
            "server_side_apply": {"field_manager": module.params["manager"], "force_conflicts": force},
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
            warnings=[*filter(None, [self._note]), *(text for one in each for text in one.get("warnings", []))],
        )

    def fail_json(self, msg: str, **_result: Any) -> NoReturn:
        """Raise CoreException, because a conflict with what was set by hand is no failure."""
        raise CoreException(msg)


def _difference(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Ansible shows of a changed object; of a Secret only its name."""
    about, kind = result["result"]["metadata"], result["result"]["kind"]
    name = f"{kind} {'/'.join(filter(None, [about.get('namespace'), about['name']]))}"
    secret = {"before": "", "after": "(not shown)\n"} if kind == "Secret" else {}
    return {**result["diff"], **secret, "before_header": name, "after_header": name}


class _Probe(_Core):
    """Asks the API server about one object without changing it."""

    def __init__(self, module: Any, item: Mapping[str, Any]) -> None:
        super().__init__(module, False)
        self.check_mode, self.params["resource_definition"] = True, [item]

    def exit_json(self, **_result: Any) -> None:
        """Return to the loop over the objects."""


def conflicts(module: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the fields of other managers in all objects, by the kind and name of the object: no answer names it."""
    found = {}
    for given in module.params["objects"]:
        for item in yaml.safe_load_all(given) if isinstance(given, str) else [given]:
            if item:
                try:
                    run_module(AnsibleK8SModule(module_class=partial(_Probe, module, item)))
                except CoreException as error:
                    if fields := conflict(str(error)):
                        found[f"{item['kind']} {item['metadata']['name']}"] = fields
    return found


def apply(module: Any) -> None:
    """End an AnsibleModule that has the options of module api_apply with the result of applying its objects."""
    if MISSING:
        module.fail_json(msg=MISSING)
    force, note = module.params["take_fields"], ""
    while True:
        try:
            run_module(AnsibleK8SModule(module_class=partial(_Core, module, force, note)))
            return
        except CoreException as error:
            if force or not conflict(str(error)):
                module.fail_json(msg=str(error))
        found = conflicts(module)
        named = {about: [f"{field} of {manager}" for field, manager in fields] for about, fields in found.items()}
        shown = "; ".join(f"{about}: {', '.join(fields)}" for about, fields in named.items())
        if not all(_ONCE.fullmatch(manager) for fields in found.values() for _field, manager in fields):
            module.fail_json(msg=REFUSAL.format(shown))
        force, note = True, f"These fields were set by hand, and are set again: {shown}"


REFUSAL = (
    "Other managers have set fields otherwise than this collection wants, and would set them again; these objects were"
    " not changed. {}. Let these managers leave the fields out, or take them over once with -e gb10_take_fields=true."
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "manager": {"type": "str", "required": True},
            "objects": {"type": "list", "elements": "raw", "required": True},
            "take_fields": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    apply(module)


if __name__ == "__main__":
    main()
