# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module asks of kubernetes.core, and what it makes of the answers."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.action.pods_wait import call
from ansible_collections.gb10.cluster.plugins.modules import api_apply

CONFIG = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "programs", "namespace": "serving"}}
SECRET = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "key", "namespace": "serving"}}
OPTIONS = {"kubeconfig": "/config", "context": "gb10", "manager": "gb10.cluster.test", "objects": [CONFIG, SECRET]}


def stored(wanted: dict[str, Any], version: str, before: str = "", after: str = "") -> dict[str, Any]:
    """Return what kubernetes.core says of an object."""
    made = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
    diff = {"diff": {"before": {"data": before}, "after": {"data": after}}}
    return {"changed": before != after, "result": made, **diff}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the module with the results that kubernetes.core has for its objects."""

    def run(
        *results: dict[str, Any],
        error: Mapping[str, str] = MappingProxyType({}),
        check_mode: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        def run_module(module: Any) -> None:
            asked.append((module.params, module.check_mode, module._diff))
            of = str(module.params["resource_definition"])
            for name, text in error.items():
                if name in of and not module.params["server_side_apply"]["force_conflicts"]:
                    module.fail_json(msg=text, reason="Conflict")
            several = {"changed": any(one["changed"] for one in results), "result": {"results": results}}
            module.exit_json(**results[0] if len(results) == 1 else several)

        asked: list[Any] = []
        monkeypatch.setattr(api_apply, "run_module", run_module)
        made = call(api_apply.main, OPTIONS | options, check_mode, diff=True)
        return {"asked": asked[-1], **made}

    return run


def test_objects_are_applied_on_the_server_by_one_manager(answers: Callable[..., dict[str, Any]]) -> None:
    made = answers(stored(CONFIG, "7"), stored(SECRET, "8"), check_mode=True)
    params, check_mode, diff = made["asked"]
    assert params["resource_definition"] == [CONFIG, SECRET]
    assert params["apply"] and params["server_side_apply"] == {
        "field_manager": "gb10.cluster.test",
        "force_conflicts": False,
    }
    assert (params["kubeconfig"], params["context"], check_mode, diff) == ("/config", "gb10", True, True)
    assert (made["changed"], made["diff"], made["versions"]) == (False, [], ["7", "8"])


def test_every_changed_object_has_its_difference_and_a_secret_only_its_name(
    answers: Callable[..., dict[str, Any]],
) -> None:
    made = answers(stored(CONFIG, "7", "old", "new"), stored(SECRET, "8", "old", "hidden"))
    program, secret = made["diff"]
    assert made["changed"]
    assert program["before_header"] == program["after_header"] == "ConfigMap serving/programs"
    assert (program["before"], program["after"]) == ({"data": "old"}, {"data": "new"})
    assert secret["after_header"] == "Secret serving/key"
    assert "hidden" not in str(secret)


def test_one_object_is_answered_in_the_same_form(answers: Callable[..., dict[str, Any]]) -> None:
    made = answers(stored(CONFIG, "9", "old", "new"))
    assert (made["changed"], made["versions"], len(made["diff"])) == (True, ["9"], 1)


def test_an_error_of_the_api_is_the_message(answers: Callable[..., dict[str, Any]]) -> None:
    made = answers(error={"programs": "Failed to apply object: forbidden"})
    assert (made["failed"], made["msg"]) == (True, "Failed to apply object: forbidden")


def refused(*owners: tuple[str, str]) -> str:
    """Return what kubernetes.core makes of the answer of an API server of 1.36, which does not name the object."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{name}" using v1', "field": field}
        for field, name in owners
    ]
    body = {"kind": "Status", "reason": "Conflict", "details": {"causes": causes}, "code": 409}
    return f"Failed to apply object: {json.dumps(body)}"


def test_fields_of_other_managers_are_refused_with_all_names_unless_the_owner_takes_them(
    answers: Callable[..., dict[str, Any]],
) -> None:
    texts = [yaml.safe_dump_all([SECRET, CONFIG])]
    error = {"programs": refused((".data.x", "argocd-controller"), (".data.y", "kubectl-edit"))}
    made = answers(stored(CONFIG, "7"), error=error, objects=texts)
    assert made["failed"]
    assert ". ConfigMap programs: .data.x of argocd-controller, .data.y of kubectl-edit. Let" in made["msg"]
    assert "-e gb10_take_fields=true" in made["msg"]
    assert not answers(stored(CONFIG, "7"), error=error, take_fields=True).get("failed")


@pytest.mark.parametrize(
    ("manager", "taken"),
    [
        ("kubectl-edit", True),
        ("kubectl-set", True),
        ("OpenAPI-Generator", True),
        ("before-first-apply", True),
        ("kubectl", False),
        ("kubectl-client-side-apply", False),
        ("kustomize-controller", False),
    ],
)
def test_what_was_set_once_by_hand_is_set_again_with_a_warning(
    answers: Callable[..., dict[str, Any]], manager: str, taken: bool
) -> None:
    made = answers(stored(CONFIG, "7", "old", "new"), error={"programs": refused((".data.x", manager))})
    assert (made.get("changed", False), made.get("failed", False)) == (taken, not taken)
    said = [f"These fields were set by hand, and are set again: ConfigMap programs: .data.x of {manager}"]
    assert made.get("warnings", []) == (said if taken else [])
