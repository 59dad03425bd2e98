# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the objects of a group with a fallback: they wait without pods, and the switch may do nothing else."""

import json
from typing import Any

from ansible_collections.gb10.cluster.plugins.action.serving_objects import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, INSTANCE, REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_fallback
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe, outdated
from role_samples import role_values
from serving_samples import fabric, plan, profile, settings

NAME = "gemma-4-31b-it"
Objects = dict[tuple[str, str], dict[str, Any]]


def rendered(nodes: int = 2, with_fallback: bool = True, **options: Any) -> Objects:
    fact = plan().as_dict()
    if with_fallback:
        fewer = profile(preset="fewer", nodes=nodes, tp=nodes)
        own = settings(models_dir="")
        fact["fallback"] = plan_fallback(fabric(), fewer, profile(), own, 600, 300)[0].as_dict()
    values = role_values("sglang", plan=fact, **options)
    made = ActionModule.act(None, {"arch": "arm64", "digest": "", "image": ""} | values, {})
    return {(item["kind"], item["metadata"]["name"]): item for item in made["objects"]}


def switch_containers(objects: Objects) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = objects["Deployment", f"{NAME}-fallback"]["spec"]["template"]["spec"]["containers"]
    return found


def test_a_fallback_adds_objects_and_changes_no_rank() -> None:
    plain, more = rendered(with_fallback=False), rendered()
    added = set(more) - set(plain)
    assert {kind for kind, _name in added} == {
        "StatefulSet",
        "ConfigMap",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
    }
    assert all(FALLBACK in more[key]["metadata"]["labels"] for key in added)
    assert not [key for key, item in plain.items() if more[key] != item]
    assert not outdated(plain.values(), more.values())
    assert describe(more.values()) == describe(plain.values())


def test_the_fallback_s_pods_do_not_exist_and_no_other_workload_selects_them() -> None:
    objects = rendered()
    waiting = [
        o for (kind, _name), o in objects.items() if kind == "StatefulSet" and FALLBACK in o["metadata"]["labels"]
    ]
    assert len(waiting) == 12
    for item in waiting:
        assert item["spec"]["replicas"] == 0
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert FALLBACK in item["spec"]["selector"]["matchLabels"]
    selector = objects["Service", NAME]["spec"]["selector"]
    heads = [o for o in waiting if selector.items() <= o["spec"]["template"]["metadata"]["labels"].items()]
    assert [o["metadata"]["name"] for o in heads] == [f"{NAME}-f2-{number}-0" for number in range(1, 7)]


def test_the_fallback_needs_a_proof_of_its_own() -> None:
    objects = rendered()
    spec = objects["StatefulSet", f"{NAME}-f2-3-1"]["spec"]["template"]["spec"]
    rules = objects["Role", spec["serviceAccountName"]]["rules"]
    assert rules[1] == {
        "apiGroups": [""],
        "resources": ["pods/status"],
        "resourceNames": [f"{NAME}-f2-3-1-0"],
        "verbs": ["patch"],
    }
    assert spec["readinessGates"] == [{"conditionType": "gb10.cluster/transport"}]
    command = spec["containers"][1]["command"]
    gate = json.loads(command[command.index("--gate") + 1])
    assert gate["pods"] == [f"{NAME}-f2-3-0-0", f"{NAME}-f2-3-1-0"]
    assert gate["instance"] == NAME


def test_the_switch_may_only_scale_this_group_and_delete_its_pods() -> None:
    objects = rendered()
    rules = {
        (tuple(rule["resources"]), tuple(rule["verbs"])): rule.get("resourceNames")
        for rule in objects["Role", f"{NAME}-fallback"]["rules"]
    }
    sets = rules[("statefulsets/scale",), ("get", "patch")]
    assert set(sets) == {name for kind, name in objects if kind == "StatefulSet"}
    assert rules[("pods",), ("get", "delete")] == [f"{name}-0" for name in sets]
    assert rules[("configmaps",), ("get", "patch")] == [f"{NAME}-fallback"]
    assert rules[("events",), ("create",)] is None
    (wide,) = objects["ClusterRole", f"gb10-serving-{NAME}-fallback"]["rules"]
    assert (wide["resources"], wide["verbs"]) == (["nodes"], ["list"])


def test_the_switch_gets_its_settings_and_its_program() -> None:
    objects = rendered()
    spec = objects["Deployment", f"{NAME}-fallback"]["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    switch, supervisor = spec["containers"]
    given = Settings.parse(switch["command"][-1])
    assert (given.after, given.return_after, given.metrics_port) == (600, 300, 30003)
    assert given.main.nodes == ("spark1", "spark2", "spark3", "spark4")
    assert given.choice("f2-1").sets == (f"{NAME}-f2-1-0", f"{NAME}-f2-1-1")
    assert given.choice("f2-1").preset == "fewer"
    code = objects["ConfigMap", f"{NAME}-fallback-code"]["data"]
    parts = {path.partition("-")[2].partition("-")[0] for path in code}
    assert parts == {"_kube", "_pod"}
    assert {"gb10-_pod-fallback.py", "gb10-_pod-supervise.py"} < set(code)
    assert supervisor["command"].count("--pods") == 6
    assert "data" not in objects["ConfigMap", f"{NAME}-fallback"]


def test_the_kubelet_restarts_a_program_whose_rounds_do_not_go_on() -> None:
    (alone,) = rendered()["Deployment", f"{NAME}-supervisor"]["spec"]["template"]["spec"]["containers"]
    for container in (alone, *switch_containers(rendered())):
        probed, (port,) = container["livenessProbe"]["httpGet"], container["ports"]
        assert probed == {"path": "/live", "port": port["name"]}
        assert str(port["containerPort"]) in " ".join(container["command"])


def test_a_fallback_of_one_node_is_supervised_too() -> None:
    switch, supervisor = switch_containers(rendered(nodes=1))
    assert switch["name"] == "switch"
    assert supervisor["command"].count("--pods") == 4
    assert [one["name"] for one in switch_containers(rendered(supervisor=False))] == ["switch"]


def test_another_program_restarts_the_switch(monkeypatch: Any) -> None:
    def revision() -> str:
        found: str = rendered()["Deployment", f"{NAME}-fallback"]["spec"]["template"]["metadata"]["annotations"][
            REVISION
        ]
        return found

    before = revision()
    module = "ansible_collections.gb10.cluster.plugins.action.serving_objects._programs"
    monkeypatch.setattr(module, lambda *names: {"gb10/x.py": " ".join(names)})
    assert revision() != before


OWNERS: dict[str, Any] = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "image_pull_secrets": ["registry"],
    "pod_labels": {"kueue.x-k8s.io/queue-name": "llm", INSTANCE: "other"},
    "pod_annotations": {"example.com/cost": "team a", REVISION: "other"},
    "priority_class": "preemptible",
    "scheduler": "kai-scheduler",
}


def test_every_pod_of_a_group_is_as_the_owner_of_the_cluster_wants_it_and_unchanged_by_default() -> None:
    made = rendered(**OWNERS)
    found = [item for (kind, _n), item in made.items() if kind in ("StatefulSet", "Deployment")]
    assert len(found) > 6
    for item in found:
        pod = item["spec"]["template"]
        assert pod["spec"]["tolerations"][-1:] == OWNERS["tolerations"]
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert (pod["spec"]["priorityClassName"], pod["spec"]["schedulerName"]) == ("preemptible", "kai-scheduler")
        for meta in (item["metadata"], pod["metadata"]):
            assert meta["labels"]["kueue.x-k8s.io/queue-name"] == "llm"
            assert meta["annotations"]["example.com/cost"] == "team a"
        # The collection finds its pods by its own labels.
        assert (pod["metadata"]["labels"][INSTANCE], pod["metadata"]["annotations"][REVISION] != "other") == (
            NAME,
            True,
        )
    plain = rendered(with_fallback=False)
    words = ("tolerations", "imagePullSecrets", "priorityClassName", "schedulerName", "example.com")
    assert not [key for key, item in plain.items() if any(word in json.dumps(item) for word in words)]
    assert all(outdated(plain.values(), rendered(with_fallback=False, **{key: OWNERS[key]}).values()) for key in OWNERS)
