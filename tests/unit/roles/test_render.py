# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the files that playbook render writes: the same ones each time, complete, valid, and without secrets."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ROOT, SERVER, Server, ansible
from kube_schema import validate

SECRETS = {"sglang_hf_token": "t0ken", "gateway_api_key": "k3y", "monitoring_grafana_password": "pa55"}
GIVEN = {
    **SECRETS,
    "gb10_image_pull_secrets": ["registry"],
    "gb10_rdma_mode": "restricted",
    "sglang_allow_from": [{"podSelector": {}}],
    "monitoring_stack": True,
    "monitoring_namespace": "watch",
}


# Who asked this API would fail, or say that it does not answer.
API = "https://127.0.0.1:1"
KUBECONFIG = {
    "clusters": [{"name": "gb10", "cluster": {"server": API}}],
    "contexts": [{"name": "gb10", "context": {"cluster": "gb10", "user": "gb10"}}],
    "users": [{"name": "gb10", "user": {}}],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Return the texts of the files by name, of two runs whose sets are in another order. They ask no cluster."""
    found = []
    other = Server(PYTHONHASHSEED="1")
    for server in (SERVER, other):
        results = tmp_path_factory.mktemp("results")
        values, config = results / "values.yml", results / "kubeconfig"
        config.write_text(yaml.safe_dump(KUBECONFIG))
        values.write_text(yaml.safe_dump({**GIVEN, "gb10_results_dir": str(results), "gb10_kubeconfig": str(config)}))
        words = ["-i", ROOT / "inventory" / "2x-gb10-direct", ROOT / "playbooks/render.yml", "-e", f"@{values}"]
        done = ansible("ansible-playbook", *words, env=server.environment, server=server)
        assert done.returncode == 0 and API not in done.stdout + done.stderr, done.stdout + done.stderr
        (directory,) = results.glob("objects-*")
        found.append({path.name: path.read_text(encoding="utf-8") for path in Path(directory).iterdir()})
    other.stop()
    return found


def test_two_runs_write_the_same_bytes(written: list[dict[str, str]]) -> None:
    assert written[0] == written[1]


def test_each_part_is_valid_and_names_secrets_without_their_values(written: list[dict[str, str]]) -> None:
    objects: dict[str, list[dict[str, Any]]] = {
        name: [one for one in yaml.safe_load_all(text) if one] for name, text in written[0].items()
    }
    kinds = {name: validate(made) for name, made in objects.items()}
    parts = ("group", "gateway", "multus", "device-plugins", "monitoring", "networks")
    assert set(kinds) == {f"{part}.yml" for part in parts}
    assert kinds["group.yml"].count("StatefulSet") == 2
    assert {"Deployment", "Service"} <= set(kinds["gateway.yml"])
    assert {one["kind"] for one in objects["networks.yml"]} == {"NetworkAttachmentDefinition"}
    everything = [one for made in objects.values() for one in made]
    # A controller would fight over nodes, or delete them; Secrets are the owner's.
    assert not {"Node", "Secret"} & {one["kind"] for one in everything}
    text = "".join(written[0].values())
    assert not [value for value in SECRETS.values() if value in text]
    assert "secretKeyRef" in text and "imagePullSecrets" in text


def test_every_object_says_who_made_it_and_no_two_files_have_the_same_one(written: list[dict[str, str]]) -> None:
    everything = [one for text in written[0].values() for one in yaml.safe_load_all(text) if one]
    names = [(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in everything]
    assert len(names) == len(set(names))
    prefix = "app.kubernetes.io/"
    for one in everything:
        labels = one["metadata"]["labels"]
        assert labels[f"{prefix}managed-by"] == "gb10.cluster", one["metadata"]
        pod = (one.get("spec") or {}).get("template", {}).get("metadata", {}).get("labels")
        assert pod is None or {f"{prefix}{key}" for key in ("name", "part-of", "managed-by")} <= set(pod), one
        if f"{prefix}instance" in labels and labels.get(f"{prefix}name") == "sglang":
            wanted = {f"{prefix}{key}" for key in ("version", "component", "part-of")}
            assert wanted <= set(labels), one["metadata"]
