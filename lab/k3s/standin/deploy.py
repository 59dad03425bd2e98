# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply server/manifests, label the server's node, and create K3s's RuntimeClasses."""

import json
import subprocess
import time

from .children import background, log
from .settings import Settings, component

_RUNTIME_CLASSES = (
    "nvidia",
    "nvidia-experimental",
    "crun",
    "lunatic",
    "slight",
    "spin",
    "wasmedge",
    "wasmer",
    "wasmtime",
    "wws",
)


def start(settings: Settings) -> None:
    """Start in the background."""
    _write_own(settings)
    background("deploy", lambda: _Deployer(settings).run())


def _write_own(settings: Settings) -> None:
    objects = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        for name in _RUNTIME_CLASSES
    ]
    for name, items in (("runtimes", objects), ("rolebindings", _controller_rights())):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        (settings.server / "manifests" / f"{name}.yaml").write_text(text)


def _controller_rights() -> list[dict[str, object]]:
    """Return what flannel and the controller of NetworkPolicies may do, for the user name that K3s gives them."""
    group, name = "rbac.authorization.k8s.io", "system:k3s-controller"
    reading = {"verbs": ["get", "list", "watch"]}
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "namespaces", "pods"], **reading},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], **reading},
    ]
    kind = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    subject = {"kind": "User", "name": name, "apiGroup": group}
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    return [
        {"kind": "ClusterRole", "rules": rules, **kind},
        {"kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": reference, **kind},
    ]


class _Deployer:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._applied: dict[str, float] = {}
        self._labelled = False

    def _kubectl(self, *arguments: str) -> bool:
        argv = [component("kubectl"), f"--kubeconfig={self._settings.server}/cred/admin.kubeconfig", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            log(f"kubectl {arguments[0]}: {done.stderr.strip()}")
        return done.returncode == 0

    def run(self) -> None:
        """Apply each new or changed manifest, as K3s's deploy controller does; label this node once."""
        while True:
            for path in sorted((self._settings.server / "manifests").rglob("*")):
                if path.suffix not in {".yaml", ".yml", ".json"} or path.with_name(path.name + ".skip").exists():
                    continue
                changed = path.stat().st_mtime
                if self._applied.get(str(path)) != changed and self._kubectl(
                    "apply", "--server-side", "--force-conflicts", "--field-manager=deploy@k3s", "-f", str(path)
                ):
                    self._applied[str(path)] = changed
            if not self._labelled and not self._settings.flag("disable-agent"):
                self._labelled = self._label()
            time.sleep(2)

    def _label(self) -> bool:
        """Set the role labels, which a kubelet may not set itself."""
        roles = ["node-role.kubernetes.io/control-plane=true"]
        if self._settings.embedded_etcd:
            roles.append("node-role.kubernetes.io/etcd=true")
        return self._kubectl("label", "--overwrite", "node", self._settings.node_name, *roles)
