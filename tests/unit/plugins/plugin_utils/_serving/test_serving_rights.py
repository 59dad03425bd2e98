# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the computed rights are exactly those of the requests that roles, modules and the group's objects make.

tests/lab/test_existing.py uses them with a real API server.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import manifests, pods, rights
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import Access
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_fallback
from serving_samples import fabric, plan, profile, settings

ROOT = Path(__file__).resolve().parents[5]
NAMESPACE, GROUP = "gb10-serving", "gemma-4-31b-it"
Request = tuple[str, str, str]
# Task files that the playbooks serve, serve_status, serve_stop, logs, verify and bench run, as far as they ask the API.
TASKS = [
    "roles/sglang/tasks/main.yml",
    *(
        f"roles/sglang/tasks/{name}.yml"
        for name in (
            "preflight",
            "images",
            "secrets",
            "live",
            "replace",
            "verdict",
            "stop_ranks",
            "deploy",
            "wait",
            "find",
            "status",
            "read_logs",
            "stop_switch",
        )
    ),
    "roles/sglang/tasks/stop.yml",
    *(f"roles/gateway/tasks/{name}.yml" for name in ("members", "read", "wait")),
    "roles/nccl_verify/tasks/main.yml",
    "roles/serving_plan/tasks/running.yml",
    "roles/sglang/vars/main.yml",
    "roles/summary/tasks/main.yml",
    # A group that runs is measured with the same rights.
    *(f"roles/bench/tasks/{name}.yml" for name in ("target", "environment", "cell")),
]
# Modules and actions of the collection in these files that ask the API, and the code with their requests.
MODULES = {
    "image_pull": ["plugins/modules/image_pull.py"],
    "nccl_transport": ["plugins/action/nccl_transport.py", "plugins/module_utils/_kube/pod_logs.py"],
    "node_room_info": ["plugins/modules/node_room_info.py"],
    "pods_wait": ["plugins/modules/pods_wait.py"],
    "run_lock": ["plugins/action/run_lock.py"],
    "serving_group_info": ["plugins/modules/serving_group_info.py"],
    "serving_verdict": ["plugins/modules/serving_verdict.py"],
}
SILENT = {"api_apply", "api_info", "gateway_objects", "serving_changes", "serving_objects", "show", "roce_gid_info"}
SILENT |= {"load_cell", "sweep_record"}
LEASES = ("coordination.k8s.io", "leases")
# The requests of every method of Cluster.
METHODS: dict[str, list[Request]] = {
    "objects": [],
    "pods": [("", "pods", "list")],
    "all_pods": [],
    "nodes": [],
    "warnings": [("", "events", "list")],
    "events": [("", "events", "list")],
    "create_pod": [("", "pods", "create")],
    "delete_pod": [("", "pods", "delete")],
    "config_map": [("", "configmaps", "get")],
    "add_to_config_map": [("", "configmaps", "patch"), ("", "configmaps", "create")],
    "read_lease": [(*LEASES, "get")],
    "write_lease": [(*LEASES, "create"), (*LEASES, "update")],
    "delete_lease": [(*LEASES, "delete")],
    "log_end": [("", "pods/log", "get")],
    "open_log": [("", "pods/log", "get")],
    "run": [("", "pods/exec", verb) for verb in rights.EXEC],
    "stream": [("", "pods/exec", verb) for verb in rights.EXEC],
}
# Methods of Cluster that serving does not use.
UNUSED = {"daemon_set", "version", "api_groups"}
OTHER = {"Namespace": ("", "namespaces"), "Pod": ("", "pods"), "Secret": ("", "secrets")}
NADS = ("k8s.cni.cncf.io", "network-attachment-definitions")
KINDS = {**rights.RESOURCES, **OTHER, "NetworkAttachmentDefinition": NADS}


def content(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def tasks(path: str) -> Iterator[dict[str, Any]]:
    waiting = list(found) if isinstance(found := content(path), list) else []
    while waiting:
        task = waiting.pop()
        waiting += task.get("block", [])
        yield task


def kinds(task: dict[str, Any], options: dict[str, Any]) -> list[str]:
    kind = options.get("kind", "")
    if "{{" not in kind:
        return [kind]
    if task["loop"] == "{{ __sglang_optional }}":
        return ["RoleBinding", "Role", "Ingress", "NetworkPolicy", "PodDisruptionBudget", "Secret"]
    return [item if isinstance(item, str) else item.get("kind", "StatefulSet") for item in task["loop"]]


def reads(value: Any) -> Iterator[Request]:
    """Yield the requests of the entries of option reads of module api_info, wherever a file has them."""
    if isinstance(value, dict) and "resource" in value:
        version, _slash, plural = value["resource"].rpartition("/")
        yield version.rpartition("/")[0], plural, "get" if "name" in value else "list"
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from reads(item)


def asked(path: str) -> Iterator[Request]:
    """Yield the requests of a task file; those for the rendered objects come from the objects."""
    yield from reads(content(path))
    for task in tasks(path):
        if options := task.get("kubernetes.core.k8s_info"):
            verb = "get" if "name" in options else "list"
            yield from ((*KINDS[kind], verb) for kind in kinds(task, options))
        elif "kubernetes.core.k8s_exec" in task:
            yield from METHODS["run"]
        elif "kubernetes.core.k8s_log" in task:
            yield from [("", "pods", "get"), ("", "pods/log", "get")]
        elif options := task.get("kubernetes.core.k8s"):
            if options.get("definition") == "{{ gateway_planned.objects }}":
                yield from (("apps", "deployments", verb) for verb in rights.CHANGE)
            elif "definition" not in options:
                for kind in kinds(task, options):
                    verbs = rights.DELETE_ALL if options.get("delete_all") and kind != "Secret" else rights.DELETE
                    yield from ((*KINDS[kind], verb) for verb in verbs)
        elif isinstance(applied := task.get("gb10.cluster.api_apply", {}).get("objects"), list):
            yield from ((*KINDS[one["kind"]], verb) for one in applied for verb in rights.APPLY)
        for word in task:
            if word.startswith("gb10.cluster.") and (name := word.removeprefix("gb10.cluster.")) not in SILENT:
                yield from (request for file in MODULES[name] for request in called(file))


def called(file: str) -> Iterator[Request]:
    """Yield the requests of the methods of Cluster that a module calls."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield from METHODS[node.attr]


def objects(mode: str = "restricted", **access: Any) -> list[dict[str, Any]]:
    of = plan(rdma_mode=mode, rdma_resources=("rdma/gb10",), models_dir="/srv/models")
    given = {"ingress": {"host": "models.example"}, "allow_from": [{"podSelector": {}}]} | access
    return manifests.render(of, pods.PodOptions(), {}, {}, Access(**given))


def with_fallback() -> list[dict[str, Any]]:
    two = profile(preset="two-nodes", nodes=2, tp=2)
    own = settings(rdma_mode="restricted", rdma_resources=("rdma/gb10",))
    fallback = plan_fallback(fabric(), two, profile(), own, 600, 600)[0]
    of = plan(rdma_mode="restricted", rdma_resources=("rdma/gb10",), models_dir="/srv/models")
    given: dict[str, Any] = {"ingress": {"host": "models.example"}, "allow_from": [{"podSelector": {}}]}
    return manifests.render(of, pods.PodOptions(), {}, {}, Access(**given), None, fallback)


def granted(found: list[rights.Right]) -> set[Request]:
    return {(right.group, right.resource, verb) for right in found for verb in right.verbs}


def test_all_methods_of_the_client_are_known() -> None:
    source = ast.parse((ROOT / "plugins/module_utils/_kube/client.py").read_text(encoding="utf-8"))
    (cluster,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Cluster")
    methods = {node.name for node in cluster.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    assert methods == set(METHODS) | UNUSED


@pytest.mark.parametrize("fallback", [False, True])
def test_the_rights_are_exactly_those_of_the_requests(fallback: bool) -> None:
    made = with_fallback() if fallback else objects()
    found = rights.needed(made, NAMESPACE, GROUP, secret=True)
    wanted = {request for path in TASKS for request in asked(path)}
    for item in made:
        wanted |= {(*rights.RESOURCES[item["kind"]], verb) for verb in rights.APPLY}
        for rule in item.get("rules", []):
            wanted |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    volumes = {request for request in wanted if request[1] == "persistentvolumes"}
    switch = {request for request in wanted if request[1] in ("clusterroles", "clusterrolebindings", "nodes")}
    assert granted(found.namespaced) == wanted - volumes - switch
    assert granted(found.volumes) == volumes
    # Without a fallback there is no status, and the tasks that delete the switch do not run.
    assert granted(found.fallback) == (switch if fallback else set())


def test_a_group_without_a_supervisor_joins_a_gateway_too() -> None:
    made = manifests.render(plan(), pods.PodOptions(supervisor=False), {}, {})
    found = granted(rights.needed(made, NAMESPACE, GROUP, secret=False).namespaced)
    assert ("apps", "deployments", "patch") in found


def test_every_file_with_requests_is_among_the_compared_ones() -> None:
    for role in ("sglang", "nccl_verify", "summary", "bench"):
        for file in (ROOT / "roles" / role / "tasks").glob("*.yml"):
            words = file.read_text(encoding="utf-8")
            name = str(file.relative_to(ROOT))
            assert "kubernetes.core.k8s" not in words.replace("group/kubernetes.core.k8s", "") or name in TASKS, name


def test_secrets_are_reachable_only_by_name_and_nothing_is_granted_with_a_wildcard() -> None:
    found = rights.needed(objects(), NAMESPACE, GROUP, secret=True).namespaced
    secrets = {right.names: right.verbs for right in found if right.resource == "secrets"}
    assert secrets == {(): ("create",), (f"{GROUP}-secrets",): ("delete", "get", "patch")}
    assert not any("*" in (right.group, right.resource, *right.verbs) for right in found)
    private = manifests.render(plan(), pods.PodOptions(owner=Owner(["registry"], priority_class="low")), {}, {})
    wanted = rights.needed(private, NAMESPACE, GROUP, secret=False)
    assert {r.names: r.verbs for r in wanted.namespaced if r.resource == "secrets"}["registry",] == ("get",)
    assert wanted.optional[-1].names == ("low",)
    without = rights.needed(objects(), NAMESPACE, GROUP, secret=False).namespaced
    assert {r.names: r.verbs for r in without if r.resource == "secrets"} == {(f"{GROUP}-secrets",): ("delete", "get")}
