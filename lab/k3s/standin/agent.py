# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a node: real containerd with the air-gap images, kubelet and kube-proxy."""

import dataclasses
import subprocess
import time
from pathlib import Path

import yaml

from . import containerd, dns, images, join, network, passwords, pki, tokens
from .children import Children, log
from .server import kubeconfig
from .settings import API_PORT, REGISTRIES, Settings, StandInError, component, extra, node_programs


class Agent:
    """One node of the cluster. A server is a node too."""

    def __init__(self, settings: Settings, children: Children) -> None:
        self._settings = settings
        self._children = children
        self._url = settings.text("server") if settings.role == "agent" else f"https://127.0.0.1:{API_PORT}"

    def start(self) -> None:
        """Join, then start the node's programs."""
        self._join()
        self._directories()
        network.install_plugins(self._settings)
        argv = [images.program("containerd"), f"--config={self._containerd_config()}"]
        self._children.start("containerd", argv, self._settings.agent / "containerd" / "containerd.log")
        self._children.wait_for("containerd answers", lambda: images.ctr("version").returncode == 0)
        images.import_all(self._settings.agent)
        self._kubelet_config()
        self._children.start("kubelet", [
            component("kubelet"), f"--config={self._settings.agent}/etc/kubelet.yaml",
            f"--kubeconfig={self._settings.agent}/kubelet.kubeconfig",
            f"--hostname-override={self._settings.node_name}",
            f"--node-ip={self._settings.node_ip}", *self._labels(), *extra(self._settings, "kubelet-arg"),
        ])  # fmt: skip
        self._children.start("kube-proxy", [
            component("kube-proxy"), f"--kubeconfig={self._settings.agent}/kubeproxy.kubeconfig",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self._settings.cluster_cidr}", f"--hostname-override={self._settings.node_name}",
            # keep the limits of the machine, which a lab may not change
            "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            "--healthz-bind-address=127.0.0.1:10256", *extra(self._settings, "kube-proxy-arg"),
        ])  # fmt: skip
        network.start(self._settings, self._children, self._url)
        dns.start(self._settings, self._url)
        if not self._settings.flag("disable-network-policy"):
            # Both write the table filter. kube-router restores it as it read it before, and so deletes a chain that
            # kube-proxy made meanwhile. Then the first sync of kube-proxy 1.36 fails, and OnServiceSynced in
            # pkg/proxy/iptables/proxier.go does not retry it: no Service works on the node for the next hour.
            self._children.wait_for("kube-proxy has its rules", _services_have_rules)
            self._children.start("network-policies", [
                f"{node_programs()}/network-policies", f"--kubeconfig={self._settings.agent}/k3scontroller.kubeconfig",
                f"--node={self._settings.node_name}", f"--service-cidr={self._settings.service_cidr}",
            ])  # fmt: skip

    def _token(self) -> tuple[tokens.Token, str]:
        """Return the token with which this node joins, and its user."""
        if self._settings.role == "server":
            return tokens.parse((self._settings.server / "token").read_text().strip()), "server"
        text = self._settings.secret("token")
        if not text:
            raise StandInError("--token is required")
        token = tokens.parse(text)
        return token, token.user or "node"

    def _join(self) -> None:
        if not self._url:
            raise StandInError("--server is required")
        token, user = self._token()
        agent = self._settings.agent
        stems = ("client-kubelet", "serving-kubelet", "client-kube-proxy", "client-k3s-controller")
        body = {"password": passwords.own(), **{stem: pki.request(agent / stem) for stem in stems}}
        while True:
            try:
                client = join.Client(self._url, token, user)
                addresses = [self._settings.node_ip]
                answer = client.post(
                    "/v1-k3s/certificates", {"name": self._settings.node_name, "addresses": addresses, **body}
                )
                break
            except OSError as error:
                log(f"{self._url} does not answer yet: {error}")
                time.sleep(1)
            except join.Refused as error:
                raise StandInError(f"failed to join {self._url}: {error}") from None
        learnt = {key: answer[key] for key in ("cluster-cidr", "service-cidr")}
        self._settings = dataclasses.replace(self._settings, values={**self._settings.values, **learnt})
        for stem in stems:
            pki.write_private(agent / f"{stem}.crt", answer[stem], 0o644)
        pki.write_private(agent / "client-ca.crt", answer["client-ca"], 0o644)
        pki.write_private(agent / "server-ca.crt", client.ca.decode(), 0o644)
        ca = agent / "server-ca.crt"
        for name, stem in (
            ("kubelet", "client-kubelet"),
            ("kubeproxy", "client-kube-proxy"),
            ("k3scontroller", "client-k3s-controller"),
        ):
            pki.write_private(agent / f"{name}.kubeconfig", kubeconfig(self._url, ca, pki.Pair(agent / stem)))

    def _directories(self) -> None:
        for name in ("etc/containerd/certs.d", "etc/cni/net.d", "containerd", "images", "pod-manifests"):
            (self._settings.agent / name).mkdir(parents=True, exist_ok=True)
        Path("/run/k3s/containerd").mkdir(parents=True, exist_ok=True)

    def _labels(self) -> list[str]:
        labels = ["node.kubernetes.io/instance-type=k3s", *self._settings.items("node-label")]
        taints = self._settings.items("node-taint")
        return [
            f"--node-labels={','.join(labels)}",
            *([f"--register-with-taints={','.join(taints)}"] if taints else []),
        ]

    def _containerd_config(self) -> Path:
        agent = self._settings.agent
        containerd.write_drop_in(agent, images.base_spec([images.program("ctr")]))
        if REGISTRIES.exists():
            images.write_mirrors(agent, yaml.safe_load(REGISTRIES.read_text()) or {})
        return containerd.write_config(self._settings, network.bin_dir(self._settings))

    def _kubelet_config(self) -> None:
        agent = self._settings.agent
        cgroup_v1 = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": f"{agent}/client-ca.crt"}},
            "authorization": {"mode": "Webhook"}, "cgroupDriver": "cgroupfs",
            "clusterDNS": [self._settings.service(10)], "clusterDomain": "cluster.local", "containerRuntimeEndpoint": f"unix://{images.SOCKET}",
            "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%"},
            # K3s's defaults, except these: the lab may lack CAP_SYS_RESOURCE and may run on cgroup v1
            "oomScoreAdj": 0, "failCgroupV1": False, "failSwapOn": False,
            "protectKernelDefaults": self._settings.flag("protect-kernel-defaults"),
            "imageGCHighThresholdPercent": 100, "healthzBindAddress": "127.0.0.1",
            "readOnlyPort": 0, "resolvConf": "/etc/resolv.conf",
            "serializeImagePulls": False, "staticPodPath": f"{agent}/pod-manifests",
            "tlsCertFile": f"{agent}/serving-kubelet.crt", "tlsPrivateKeyFile": f"{agent}/serving-kubelet.key",
        }  # fmt: skip
        if cgroup_v1:
            log("cgroup v1: real K3s of this release would want kubelet-arg fail-cgroupv1=false")
        (agent / "etc" / "kubelet.yaml").write_text(yaml.safe_dump(config))


def _services_have_rules() -> bool:
    """Return whether kube-proxy has written the rules of all Services. The jump to KUBE-NODEPORTS is the last one."""
    argv = ["iptables", "-w", "-t", "nat", "-S", "KUBE-SERVICES"]
    return "-j KUBE-NODEPORTS" in subprocess.run(argv, capture_output=True, text=True, check=False).stdout
