# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the defaults of role multus: the image, and the CNI plugins that the attachments use."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.attachments import nads
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric

ROLE = Path(__file__).resolve().parents[3] / "roles" / "multus"
NAME = "ghcr.io/k8snetworkplumbingwg/multus-cni"


def variables(**changes: Any) -> dict[str, Any]:
    loader = DataLoader()
    files = [
        loader.load_from_file(str(ROLE / part / "main.yml"), trusted_as_template=True) for part in ("defaults", "vars")
    ]
    return {**files[0], **files[1], **changes}


def value(name: str, **changes: Any) -> Any:
    known = variables(**changes)
    return Templar(loader=DataLoader(), variables=known).template(known[name])


@pytest.mark.parametrize(
    ("changes", "image"),
    [
        ({}, "v4.3.1-thick@sha256:a357"),
        ({"multus_image": f"{NAME}:v4.3.0-thick"}, "v4.3.0-thick@sha256:a922"),
        ({"multus_image": f"{NAME}:v4.3.0", "multus_image_digest": "sha256:b"}, "v4.3.0@sha256:b"),
        ({"multus_image_verified": True}, "v4.3.1-thick"),
    ],
)
def test_the_image_is_pinned_unless_it_comes_from_a_verified_air_gap_directory(
    changes: dict[str, Any], image: str
) -> None:
    shown = value("__multus_image", **changes)
    assert shown.startswith(f"{NAME}:{image}")
    assert ("@" in shown) is ("@" in image)


def test_every_plugin_of_the_attachments_is_installed() -> None:
    plan = plan_fabric(fabric(1, gb10_fabric_topology="single"))[0].as_dict()
    configs = [json.loads(manifest["spec"]["config"]) for manifest in nads(plan, "ns")]
    used = {name for config in configs for plugin in config["plugins"] for name in names(plugin)}
    assert used == set(value("multus_cni_plugins"))
    lab = (ROLE.parents[1] / "lab" / "kubernetes" / "prepare").read_text(encoding="utf-8")
    assert all(f'"{name}"' in lab for name in used)


@pytest.mark.parametrize(("given", "argument"), [({}, "true"), ({"multus_namespace_isolation": "no"}, "false")])
def test_multus_isolates_namespaces_unless_told_otherwise(given: dict[str, Any], argument: str) -> None:
    template = (ROLE / "templates" / "multus.yml.j2").read_text(encoding="utf-8")
    known = variables(**given)
    text = Templar(loader=DataLoader(), variables=known).template(trust_as_template(template))
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    command = found["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert f"--namespace-isolation={argument}" in command
    # The policy was compared with the API server of Kubernetes 1.36.4: what it refuses, and where.
    policy, binding = found["ValidatingAdmissionPolicy"], found["ValidatingAdmissionPolicyBinding"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert binding["spec"]["validationActions"] == ["Deny" if argument == "true" else "Warn"]
    (but,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (but["operator"], but["values"]) == ("NotIn", ["gb10-serving", "kube-system"])
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], "CREATE" in rule["operations"]) == (["pods"], True)
    assert "'v1.multus-cni.io/default-network' in" in policy["spec"]["validations"][0]["expression"]
    removed = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))["__multus_objects"]
    assert {"Namespace", *(each["kind"] for each in removed)} == set(found)


def names(plugin: dict[str, Any]) -> set[str]:
    return {plugin["type"], *([plugin["ipam"]["type"]] if "ipam" in plugin else [])}
