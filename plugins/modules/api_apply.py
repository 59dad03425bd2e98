#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC

try:
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


class Conflict(NamedTuple):
    """The fields of one object that other managers have set otherwise, each as ``.data.x of argocd-controller``."""

    about: str
    fields: tuple[str, ...]
    lasting: bool


def conflict(error: str) -> Conflict | None:
    """Return what other managers own, from the API server's answer to an apply; None for any other error."""
    try:
        text = error[error.index("{") : error.rindex("}") + 1]
        # Some releases of the client give the answer as bytes, and kubernetes.core their form in Python.
        said = json.loads(ast.literal_eval(f"b'{text}'") if re.search(r"b'\{", error) else text)
        about = f"{said['details']['kind']} {said['details']['name']}"
        causes = [one for one in said["details"]["causes"] if one["reason"] == "FieldManagerConflict"]
    except (ValueError, KeyError, TypeError, SyntaxError):
        return None
    found = [(one["field"], re.search(r'conflict with "([^"]*)"', one["message"])) for one in causes]
    owned = [(field, name[1]) for field, name in found if name]
    lasting = any(not _ONCE.fullmatch(name) for _field, name in owned)
    return Conflict(about, tuple(f"{field} of {name}" for field, name in owned), lasting) if owned else None


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
            found = conflict(str(error))
            if found is None or found.lasting or force:
                module.fail_json(msg=_refusal(found) if found else str(error))
            force, note = True, f"{found.about}: {', '.join(found.fields)} was set by hand, and is set again."


def _refusal(found: Conflict) -> str:
    return (
        f"{found.about}: {', '.join(found.fields)} has another value than this collection wants, and its manager would"
        " set it again; this object and those after it were not changed. Let that manager leave these fields out, or"
        " take them over once with -e gb10_take_fields=true."
    )


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
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
