# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every object that the roles apply with Kubernetes' schemas; test_monitoring_stack.py has those of monitoring."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.action.gateway_objects import ActionModule as Gateway
from ansible_collections.gb10.cluster.plugins.action.serving_objects import ActionModule as Serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_fallback
from kube_schema import validate
from pydantic import ValidationError
from role_samples import role_values
from serving_samples import fabric, plan, profile, settings

ROLES = Path(__file__).resolve().parents[3] / "roles"
WISHES: dict[str, Any] = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "image_pull_secrets": ["registry"],
    "pod_labels": {"kueue.x-k8s.io/queue-name": "llm"},
    "pod_annotations": {"example.com/cost": "team a"},
    "priority_class": "low",
    "scheduler": "kai-scheduler",
    "ingress": {"host": "models.example", "class": "nginx", "tls": "front"},
    "allow_from": [{"podSelector": {"matchLabels": {"app": "x"}}}],
}


@pytest.mark.parametrize("mode", ["privileged", "ipc_lock", "restricted", "none"])
@pytest.mark.parametrize("options", [{}, WISHES], ids=["defaults", "wishes"])
def test_the_objects_of_a_group(mode: str, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"rdma_mode": mode, "rdma_resources": ("rdma/gb10",)}
    fact = plan(models_dir="/srv/models", **given).as_dict()
    fewer = profile(preset="fewer", nodes=2, tp=2)
    fact["fallback"] = plan_fallback(fabric(), fewer, profile(), settings(**given), 600, 300)[0].as_dict()
    values = role_values("sglang", plan=fact, hf_token="t", **options)
    made = Serving.act(None, {"arch": "arm64", "digest": "", "image": ""} | values, {})["objects"]
    assert validate(made) == [one["kind"] for one in made]


@pytest.mark.parametrize("options", [{}, WISHES | {"api_key": "k", "tls_secret": "front"}], ids=["defaults", "wishes"])
def test_the_objects_of_the_gateway(options: dict[str, Any]) -> None:
    given = {"services": [], "live": {}, "pulled": "", "closed": True, "versions": []}
    made = Gateway.act(None, given | role_values("gateway", **options), {})["objects"]
    assert validate(made) == [one["kind"] for one in made]


@pytest.mark.parametrize(
    ("role", "name"),
    [
        *(("device_plugins", name) for name in ("namespace", "nodes", "gpu", "rdma", "sriov")),
        ("multus", "multus"),
    ],
)
def test_the_objects_of_a_template(role: str, name: str) -> None:
    loader = DataLoader()
    known: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        known |= loader.load_from_file(str(ROLES / role / part / "main.yml"), trusted_as_template=True)
    known |= {"hostvars": {"spark1": {}}, "ansible_play_hosts": ["spark1"], "groups": {"gb10_nodes": ["spark1"]}}
    known["__device_plugins_sriov_config"] = {}
    text = (ROLES / role / "templates" / f"{name}.yml.j2").read_text(encoding="utf-8")
    made = [one for one in yaml.safe_load_all(Templar(loader, known).template(trust_as_template(text))) if one]
    assert validate(made)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {}, "spec": {"maxUnavailble": 0}}
    with pytest.raises(ValidationError, match="maxUnavailble"):
        validate([budget])
