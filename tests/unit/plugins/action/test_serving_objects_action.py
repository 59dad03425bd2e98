# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the objects of a group for the options of role sglang."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import serving_objects
from ansible_collections.gb10.cluster.plugins.action.serving_objects import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Settings as Switch
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES, ROLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Patch
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_fallback
from role_samples import role_values
from serving_samples import fabric, plan, profile, settings

PATCHED = {"patches": (Patch("sm121-jit-arch", "x", needed=True), Patch("sm121-admissible-archs", "y", needed=False))}


def rendered(of_profile: dict[str, Any] | None = None, **options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects by kind and name, for options of the role."""
    values = role_values("sglang", plan=plan(of_profile).as_dict(), **options)
    result = ActionModule.act(None, {"arch": "arm64", "digest": "", "image": ""} | values, {})
    assert result["changed"] is False
    return {(item["kind"], item["metadata"]["name"]): item for item in result["objects"]}


def head(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    pod: dict[str, Any] = objects["StatefulSet", "gemma-4-31b-it-0"]["spec"]["template"]["spec"]
    return pod


def test_the_defaults_give_every_pod_the_scripts_and_nothing_else() -> None:
    objects = rendered()
    scripts = objects["ConfigMap", "gemma-4-31b-it-files"]["data"]
    assert set(scripts) == set(serving_objects.IN_EVERY_POD)
    source = (ROLES / "sglang" / "files" / "generate_probe.py").read_text(encoding="utf-8")
    assert scripts["generate_probe.py"] == source.rstrip() + "\n"
    assert ("ConfigMap", "gemma-4-31b-it-patches") not in objects
    assert len(head(objects)["containers"]) == 2
    assert head(objects)["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize(("weights", "limit"), [(None, 3600), (100, 9600)])
def test_who_waits_for_a_group_learns_how_long_its_ranks_may_take(weights: int | None, limit: int) -> None:
    made = plan().as_dict() | {"load": None, "models_dir": "/srv/models"}
    made["load"] = weights and {"weights": weights, "fraction": 0.8, "least": 103, "most": 119}
    values = role_values("sglang", plan=made)
    result = ActionModule.act(None, {"arch": "arm64", "digest": "", "image": ""} | values, {})
    assert result["start_limit"] == limit


def test_options_reach_the_pods() -> None:
    objects = rendered(stuck_after="99", cache_dir="/srv/cache", service_type="NodePort")
    (supervisor,) = objects["Deployment", "gemma-4-31b-it-supervisor"]["spec"]["template"]["spec"]["containers"]
    times = ["99", "--first-step-timeout", "1800", "--start-timeout", "3600"]
    ports = ["--evidence-port", "30002", "--live-port", "30004"]
    assert supervisor["command"][-11:] == [*times, "--logs", "/var/log/group", *ports]
    assert "/srv/cache/0.5.12.post1-arm64-" in json.dumps(head(objects)["volumes"])
    assert objects["Service", "gemma-4-31b-it"]["spec"]["type"] == "NodePort"
    assert ("Deployment", "gemma-4-31b-it-supervisor") not in rendered(supervisor=False)


def test_the_gate_gets_the_options_of_its_name() -> None:
    def gate(**options: Any) -> dict[str, Any]:
        command: list[str] = head(rendered(**options))["containers"][1]["command"]
        return dict(json.loads(command[command.index("--gate") + 1]))

    assert gate(memory_guard_percent=[6, 3.5])["memory"].items() >= {"warn": 6.0, "stop": 3.5}.items()
    assert gate(memory_guard=False)["memory"] == {}
    assert "readinessGates" in head(rendered())
    # YAML reads the word off as false.
    assert gate(transport_gate="off")["expect"] is gate(transport_gate=False)["expect"] is None


def test_the_programs_of_sidecar_and_supervisor_are_complete() -> None:
    objects = rendered()
    code = objects["ConfigMap", "gemma-4-31b-it-programs"]["data"]
    for pod in (head(objects), objects["Deployment", "gemma-4-31b-it-supervisor"]["spec"]["template"]["spec"]):
        (volume,) = [one for one in pod["volumes"] if one.get("configMap", {}).get("name") == "gemma-4-31b-it-programs"]
        paths = {item["key"]: item["path"] for item in volume["configMap"]["items"]}
        assert set(paths) == set(code)
    assert paths["gb10-_pod-sidecar.py"] == "gb10/_pod/sidecar.py"
    assert paths["gb10-_pod-supervise.py"] == "gb10/_pod/supervise.py"
    # The API refuses larger objects.
    assert len(json.dumps(code)) < 900_000


def test_secrets_are_named_and_never_written() -> None:
    objects = rendered(hf_token="t0ken", allow_from=[{"podSelector": {}}])
    assert ("NetworkPolicy", "gemma-4-31b-it") in objects
    text = json.dumps(list(objects.values()))
    assert "t0ken" not in text
    variable = head(objects)["containers"][0]["env"][-1]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "gemma-4-31b-it-secrets", "key": "hf-token"}


def test_an_unknown_service_type_is_refused() -> None:
    with pytest.raises(AnsibleActionFail, match="sglang_service_type"):
        rendered(service_type="Open")


@pytest.mark.parametrize(
    ("of_profile", "options", "names"),
    [
        (PATCHED, {}, ["gb10_patch.py", "sm121-jit-arch.py"]),
        (PATCHED, {"patches": False}, []),
        ({"patches": (Patch("mine", "mine.py", needed=True),)}, {}, ["gb10_patch.py", "mine.py"]),
    ],
    ids=["needed", "left out", "of the owner"],
)
def test_patches_come_from_their_directories_with_what_they_import(
    of_profile: dict[str, Any], options: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    """A patch of the owner has an absolute path."""
    (tmp_path / "mine.py").write_text("# mine\n")
    own = {"patches": tuple(replace(one, path=str(tmp_path / one.path)) for one in of_profile["patches"])}
    objects = rendered(own if "mine.py" in names else of_profile, **options)
    patches = objects.get(("ConfigMap", "gemma-4-31b-it-patches"), {}).get("data", {})
    assert (sorted(patches), "--patch" in head(objects)["containers"][0]["command"]) == (names, bool(names))
    for name, text in patches.items():
        file = (tmp_path if name == "mine.py" else PROFILES / "patches") / name
        assert text == file.read_text(encoding="utf-8").rstrip() + "\n"


def with_fallback() -> dict[tuple[str, str], dict[str, Any]]:
    fewer = profile(preset="fewer", nodes=2, tp=2)
    fallback = plan_fallback(fabric(), fewer, profile(), settings(models_dir=""), 600, 300)[0]
    values = role_values("sglang", plan=plan().as_dict() | {"fallback": fallback.as_dict()})
    result = ActionModule.act(None, {"arch": "arm64", "digest": "", "image": ""} | values, {})
    return {(item["kind"], item["metadata"]["name"]): item for item in result["objects"]}


def test_a_fallback_adds_objects_and_changes_no_rank() -> None:
    plain, more = rendered(), with_fallback()
    assert not [key for key, item in plain.items() if more[key] != item]
    added = [item for key, item in more.items() if key not in plain]
    assert all(FALLBACK in item["metadata"]["labels"] for item in added)
    assert {item["spec"]["replicas"] for item in added if item["kind"] == "StatefulSet"} == {0}


def test_the_switch_gets_its_settings_and_its_program_and_starts_again_with_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = with_fallback()
    deployment = objects["Deployment", "gemma-4-31b-it-fallback"]["spec"]["template"]
    given = Switch.parse(deployment["spec"]["containers"][0]["command"][-1])
    assert (given.after, given.return_after, given.metrics_port) == (600, 300, 30003)
    assert given.main.nodes == ("spark1", "spark2", "spark3", "spark4")
    assert given.choice("f2-1").sets == ("gemma-4-31b-it-f2-1-0", "gemma-4-31b-it-f2-1-1")
    code = objects["ConfigMap", "gemma-4-31b-it-fallback-code"]["data"]
    assert {path.partition("-")[2].partition("-")[0] for path in code} == {"_common", "_kube", "_pod"}
    assert {"gb10-_pod-fallback.py", "gb10-_pod-supervise.py"} < set(code)
    monkeypatch.setattr(serving_objects, "_programs", lambda *names: {"gb10/x.py": " ".join(names)})
    other = with_fallback()["Deployment", "gemma-4-31b-it-fallback"]["spec"]["template"]
    assert other["metadata"]["annotations"][REVISION] != deployment["metadata"]["annotations"][REVISION]
