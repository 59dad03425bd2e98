# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module asks of kubernetes.core, and what it makes of the answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.modules import api_apply
from module_runs import Step, steps_of

CONFIG = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "programs", "namespace": "serving"}}
SECRET = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "key", "namespace": "serving"}}
OPTIONS = {"kubeconfig": "/config", "context": "gb10", "manager": "gb10.cluster.test", "objects": [CONFIG, SECRET]}


def stored(wanted: dict[str, Any], version: str, before: str = "", after: str = "") -> dict[str, Any]:
    """Return what kubernetes.core says of an object."""
    made = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
    diff = {"diff": {"before": {"data": before}, "after": {"data": after}}}
    return {"changed": before != after, "result": made, **diff}


def refused(*owners: tuple[str, str]) -> str:
    """Return what kubernetes.core makes of the answer of an API server of 1.36, which does not name the object."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{name}" using v1', "field": field}
        for field, name in owners
    ]
    body = {"kind": "Status", "reason": "Conflict", "details": {"causes": causes}, "code": 409}
    return f"Failed to apply object: {json.dumps(body)}"


class Api:
    """What kubernetes.core does: it has ``results`` for the objects, or a conflict with the owners of fields."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        self.options = OPTIONS
        self.results, self.error = [stored(CONFIG, "7"), stored(SECRET, "8")], ""
        self.asked: list[Any] = []
        patch.setattr(api_apply, "run_module", self.run)

    def run(self, module: Any) -> None:
        given = {key: module.params[key] for key in ("kubeconfig", "context", "resource_definition", "apply")}
        self.asked = [given, module.params["server_side_apply"], f"check={module.check_mode} diff={module._diff}"]
        of_config = "programs" in str(given)
        if self.error and of_config and not module.params["server_side_apply"]["force_conflicts"]:
            module.fail_json(msg=self.error, reason="Conflict")
        several = {"changed": any(one["changed"] for one in self.results), "result": {"results": self.results}}
        module.exit_json(**self.results[0] if len(self.results) == 1 else several)

    def shows(self) -> dict[str, Any]:
        return {"asked": self.asked}


CHANGED = [stored(CONFIG, "7", "old", "new")]
OWNERS = refused((".data.x", "argocd-controller"), (".data.y", "kubectl-edit"))
# Of these, programs manage the first three always, and a person used the others once.
MANAGERS = (
    "kustomize-controller", "kubectl-client-side-apply", "kubectl",
    "kubectl-edit", "kubectl-set", "OpenAPI-Generator", "before-first-apply",
)  # fmt: skip
CASES: dict[str, list[Step]] = {
    "applied": [{"check": True, "_ansible_diff": True}, {"results": [*CHANGED, stored(SECRET, "8", "old", "hidden")]}],
    "one object": [{"results": [stored(CONFIG, "9", "old", "new")]}],
    "an error": [{"error": "Failed to apply object: forbidden"}],
    "fields of others": [
        {"error": OWNERS, "results": CHANGED, "objects": [yaml.safe_dump_all([SECRET, CONFIG])]},
        {"take_fields": True},
    ],
    **{f"a field of {each}": [{"error": refused((".data.x", each)), "results": CHANGED}] for each in MANAGERS},
}
test_each_application = steps_of(api_apply=(api_apply, Api, CASES))
