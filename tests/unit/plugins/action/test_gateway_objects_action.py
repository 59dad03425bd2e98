# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which groups are behind the gateway, and its objects for the options of role gateway."""

import json
from typing import Any

from ansible_collections.gb10.cluster.plugins.action.gateway_objects import ActionModule
from role_samples import role_values

URL = "http://{}.gb10-serving.svc:30000"


def service(name: str, model: str = "m", guarded: bool = False, **spec: Any) -> dict[str, Any]:
    labels = {"gb10.cluster/instance": name} | ({"gb10.cluster/guarded": "true"} if guarded else {})
    meta = {"name": name, "namespace": "gb10-serving", "labels": labels, "annotations": {"gb10.cluster/model": model}}
    return {"metadata": meta, "spec": {"clusterIP": "10.43.0.1", "ports": [{"port": 30000}], **spec}}


TWO = [service("two"), service("one"), service("one", clusterIP="None")]


def planned(services: list[dict[str, Any]], live: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    given = {"services": services, "live": live or {}, "pulled": "", "closed": True, "versions": []}
    given |= {name: options.pop(name) for name in list(options) if name in given}
    result: dict[str, Any] = ActionModule.act(None, role_values("gateway", **options) | given, {})
    assert result["changed"] is False
    return result


def running(result: dict[str, Any]) -> dict[str, Any]:
    deployment: dict[str, Any] = result["objects"][-1]
    assert deployment["kind"] == "Deployment"
    return deployment


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_key_is_a_file_and_never_an_argument() -> None:
    result = planned([service("one", guarded=True)], api_key="k3y", tls_secret="front", versions=["7", "8"])
    assert "k3y" not in json.dumps(result)
    gateway = container(running(result))
    assert gateway["command"][2] == "--key-file=/etc/gb10/api-key/api-key"
    assert gateway["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert "--tls-key-path" in gateway["command"]
    (code,) = [item for item in result["objects"] if item["kind"] == "ConfigMap"]
    assert "sglang_router.launch_router" in code["data"]["start_gateway.py"]
    renewed = planned([service("one", guarded=True)], api_key="k3y", tls_secret="front", versions=["7", "9"])
    assert renewed["revision"] != result["revision"]


def test_a_key_that_a_group_bypasses_is_refused_with_the_setting_that_closes_it() -> None:
    result = planned([service("one"), service("three"), service("two", guarded=True)], api_key="k3y")
    assert result["failed"]
    (found,) = result["findings"]
    assert (found["key"], found["value"]) == ("gateway_api_key", "one, three")
    assert found["reason"].startswith("every pod of the cluster")
    assert "sglang_allow_from: [{podSelector: {matchLabels: {gb10.cluster/gateway: 'true'}}}]" in found["remedy"]


def test_groups_of_different_models_are_refused_unless_they_are_chosen() -> None:
    mixed = [service("one"), service("two", model="other")]
    assert "one: m, two: other" in str(planned(mixed)["findings"])
    chosen = planned(mixed, groups=["two"])
    assert (chosen["msg"], chosen["warnings"]) == (f"two: {URL.format('two')}", [])
    assert "so the gateway sends it nothing" in planned(mixed, groups=["one", "three"])["warnings"][0]
    # Names of which none is served do not empty the gateway.
    none = planned(TWO, groups=["tow"])
    assert (none["failed"], none["findings"][0]["value"]) == (True, "tow")


def test_a_group_that_joins_or_leaves_changes_only_the_workers() -> None:
    whole = running(planned(TWO))
    left = running(planned(TWO, live=whole, leaving="one"))
    assert container(left)["args"] == ["--worker-urls", URL.format("two")]
    assert set(container(left)) == {"name", "args", "readinessProbe"}
    # The same workers have the same revision, whether the role was run as a whole or a group left.
    labels = left["spec"]["template"]["metadata"]["labels"]
    assert labels == {"gb10.cluster/revision": planned([TWO[0]])["revision"]}
    joined = running(planned(TWO, live=whole))
    assert joined["spec"]["template"]["metadata"]["labels"]["gb10.cluster/revision"] == planned(TWO)["revision"]


def test_a_group_that_leaves_does_not_let_another_one_in() -> None:
    first = running(planned([service("one", guarded=True)], api_key="k3y"))
    left = planned([service("one", guarded=True), service("open")], live=first, leaving="one")
    assert container(running(left))["args"] == ["--worker-urls"]
    assert container(running(left))["readinessProbe"]["httpGet"]["path"] == "/liveness"
    assert left["msg"] == "No group is behind the gateway."
    # A running gateway has a key even if the key is not given again.
    assert planned([service("open")], live=first)["failed"]
