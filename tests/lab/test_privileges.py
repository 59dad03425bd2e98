# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may what, asked of the real API server: the pods of each RDMA mode under each Pod Security level, and every
manifest of the roles under strict validation.

GB10_TEST_LAB names the state directory of a lab whose cluster is up already; without it the test makes its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from labcommand import LABCTL, LabCommand
from module_utils import _serving_pods

CHECKOUT = LABCTL.parents[1]
LEVELS = ("privileged", "baseline", "restricted")
# What Pod Security admission of Kubernetes 1.36 is to say: mode -> the levels that admit its pods.
ADMITTED = {
    "privileged": {"privileged"},
    "ipc_lock": {"privileged"},
    "restricted": {"privileged", "baseline", "restricted"},
}
ROLES = {"device_plugins": ("namespace", "nodes", "gpu", "rdma"), "multus": ("multus",)}


class Cluster:
    """The API of a lab, through kubectl as a laptop beside it would use it."""

    def __init__(self, lab: LabCommand) -> None:
        self.lab = lab
        cache = Path(os.environ.get("GB10_CACHE") or Path.home() / ".cache" / "gb10-lab")
        self.kubectl_path = next(iter(sorted(cache.glob("kubernetes-*/bin/kubectl"))))

    def run(self, *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        argv = [str(word) for word in (LABCTL, "run", "--", *words)]
        return subprocess.run(
            argv, env=self.lab.environment, input=stdin, capture_output=True, text=True, timeout=600, check=False
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        config = self.lab.state / "kubeconfig"
        return self.run(self.kubectl_path, "--kubeconfig", config, "--context", "gb10", *words, stdin=stdin)

    def playbook(self, *words: str | Path) -> str:
        command = CHECKOUT / ".venv" / "bin" / "ansible-playbook"
        done = self.run(command, "-i", self.lab.state / "inventory", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Iterator[Cluster]:
    """A cluster of a control host and one node, made by the product's own playbook."""
    given = os.environ.get("GB10_TEST_LAB")
    made = Cluster(LabCommand(Path(given)) if given else make_lab())
    if not given:
        made.lab("up", "--nodes", "1", "--kubernetes")
        made.playbook(CHECKOUT / "playbooks" / "fabric.yml")
        made.playbook(CHECKOUT / "playbooks" / "kubernetes.yml")
    names = [f"gb10-level-{level}" for level in LEVELS]
    spaces = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": f"gb10-level-{level}", "labels": {"pod-security.kubernetes.io/enforce": level}},
        }
        for level in LEVELS
    ]
    for space in spaces:
        done = made.kubectl("apply", "-f", "-", stdin=json.dumps(space))
        assert done.returncode == 0, done.stderr
    yield made
    made.kubectl("delete", "namespace", *names, "--wait=false")


def pod(mode: str) -> dict[str, Any]:
    """A rank's pod of this mode, made by the product's own code."""
    plan: dict[str, Any] = {
        "instance": "matrix",
        "image": "localhost/gb10/none:none",
        "rdma_mode": mode,
        "sglang_version": "0.5.20",
        "service": {"name": "matrix", "port": 30000},
        "patches": [],
    }
    entry: dict[str, Any] = {
        "role": "head",
        "node": "spark1",
        "argv": ["true"],
        "env": {},
        "networks": [],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = _serving_pods.pod_spec(entry, plan, _serving_pods.PodOptions())
    # the service account belongs to the group, which is not started here
    spec.pop("serviceAccountName")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"gb10-{mode.replace('_', '-')}"}, "spec": spec}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ADMITTED)
def test_pod_security_admits_a_mode_where_it_should(cluster: Cluster, mode: str, level: str) -> None:
    answer = cluster.kubectl(
        "create", "--dry-run=server", "--namespace", f"gb10-level-{level}", "-f", "-", stdin=json.dumps(pod(mode))
    )
    if level in ADMITTED[mode]:
        assert answer.returncode == 0, answer.stderr
    else:
        assert answer.returncode != 0
        assert f'violates PodSecurity "{level}:' in answer.stderr


def render(cluster: Cluster, directory: Path, role: str, name: str) -> str:
    """Render a template of a role with the variables that the lab's inventory gives it."""
    play = {
        "name": "Render",
        "hosts": "spark1",
        "vars_files": [str(CHECKOUT / "roles" / role / part / "main.yml") for part in ("defaults", "vars")],
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.template": {
                    "src": str(CHECKOUT / "roles" / role / "templates" / f"{name}.yml.j2"),
                    "dest": str(directory / f"{name}.yml"),
                    "mode": "0600",
                },
                "delegate_to": "localhost",
            }
        ],
    }
    (directory / "render.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    cluster.playbook(directory / "render.yml", "-e", "gb10_rdma_mode=restricted")
    return (directory / f"{name}.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ROLES.items() for name in names])
def test_manifests_pass_strict_validation(cluster: Cluster, tmp_path: Path, role: str, name: str) -> None:
    text = render(cluster, tmp_path, role, name)
    assert list(yaml.safe_load_all(text))
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    answer = cluster.kubectl(*words, stdin=text)
    assert answer.returncode == 0, answer.stderr


def test_strict_validation_would_object(cluster: Cluster) -> None:
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wrong"}, "dta": {}}
    answer = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(wrong)
    )
    assert answer.returncode != 0
    assert "dta" in answer.stderr
