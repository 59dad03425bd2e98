# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the lab's Kubernetes without Ansible: simulated K3s with handwritten files, Multus, devices, pods with VFs."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import pytest
import yaml
from labcommand import CHECKOUT, LabCommand
from sitecommand import CACHE

COVERS = ("lab/kubernetes", "lab/k3s")

HOSTS = ("control", "spark1", "spark2")
NODES = HOSTS[1:]
CNI = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
CNI_BIN = "/var/lib/rancher/k3s/data/cni"
MULTUS = "ghcr.io/k8snetworkplumbingwg/multus-cni:v4.3.0"
SGLANG = "localhost/gb10/sglang-standin:0.5.12.post1"
AGENT_PASSWORD = "agent-password-of-the-test"
SERVER_PASSWORD = "server-password-of-the-test"
UNIT = """[Service]
Type={type}
ExecStart=/usr/local/bin/k3s {role}
KillMode=process
Delegate=yes
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=1s
"""
INSTALL = """
install -D -m 755 {airgap}/k3s /usr/local/bin/k3s
mkdir -p /etc/rancher/k3s /var/lib/rancher/k3s/agent/images {cni_bin}
cp {airgap}/*.tar.zst /var/lib/rancher/k3s/agent/images/
tar -xzf {airgap}/cni/cni-plugins-*.tgz -C {cni_bin}
umask 077
cat > /etc/rancher/k3s/agent-token <<< '{agent}'
cat > /etc/rancher/k3s/server-token <<< '{server}'
cat > /etc/rancher/k3s/config.yaml <<'END'
{config}
END
cat > /etc/systemd/system/{unit}.service <<'END'
{text}
END
systemctl daemon-reload
"""
VFS = """
for pf in enp1s0f0np0 enP2p1s0f0np0; do
  ip link set $pf mtu 9000 up
  echo 1 > /run/gb10-lab/sys/class/net/$pf/device/sriov_numvfs
done
for vf in enp1s0f0v0 enP2p1s0f0v0; do
  until ip link set $vf mtu 9000 up 2>/dev/null; do sleep 0.1; done
done
"""


class Cluster:
    """A lab with K3s on all hosts."""

    def __init__(self, lab: LabCommand) -> None:
        self.lab = lab
        self.seconds: dict[str, float] = {}
        self.kubeconfig = lab.state / "kubeconfig"

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl in the lab's network, as on a user's laptop; return its output and its error messages."""
        kubectl = next(iter(sorted(CACHE.glob("kubernetes-*/bin/kubectl"))))
        done = self.lab.run(kubectl, "--kubeconfig", self.kubeconfig, *words, stdin=stdin)
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stderr}"
        return done.stdout + done.stderr

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects with strict validation."""
        self.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def get(self, *words: str) -> dict[str, Any]:
        """Return objects as the API server has them."""
        return dict(json.loads(self.kubectl("get", *words, "-o", "json")))


def settings(host: str) -> str:
    """Return a handwritten config.yaml for a host."""
    config: dict[str, Any] = {"node-name": host, "flannel-iface": "enP7s7", "kubelet-arg": ["fail-cgroupv1=false"]}
    if host == "control":
        config |= {
            "token-file": "/etc/rancher/k3s/server-token", "agent-token-file": "/etc/rancher/k3s/agent-token",
            "tls-san": ["10.99.0.10"], "disable": ["traefik", "servicelb"], "secrets-encryption": True,
        }  # fmt: skip
    else:
        config |= {"server": "https://10.99.0.10:6443", "token-file": "/etc/rancher/k3s/agent-token"}
    return yaml.safe_dump(config)


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Cluster:
    """A server and two agents, VFs on both rails, Multus, two networks, and a privileged pod on each agent."""
    prepared = subprocess.run([CHECKOUT / "lab" / "kubernetes" / "prepare"], check=False).returncode
    assert prepared == 0, "lab/kubernetes/prepare failed, see above"
    cluster = Cluster(make_lab())
    # NetworkManager would start DHCP on the VFs, which this test creates without the roles
    cluster.lab.up(nodes=2, hosts="kind")
    for host in HOSTS:
        role, unit = ("server", "k3s") if host == "control" else ("agent", "k3s-agent")
        text = UNIT.format(role=role, type="notify" if role == "server" else "exec")
        cluster.lab.shell(host, INSTALL.format(
            airgap="/opt/gb10-lab-cache/airgap", cni_bin=CNI_BIN, agent=AGENT_PASSWORD, server=SERVER_PASSWORD,
            config=settings(host), unit=unit, text=text,
        ))  # fmt: skip
    begun = time.monotonic()
    for host in NODES:
        cluster.lab.shell(host, VFS)
        cluster.lab.shell(host, "systemctl start k3s-agent")
    cluster.lab.shell("control", "systemctl start k3s")
    cluster.seconds["k3s.service started"] = time.monotonic() - begun
    kubeconfig = cluster.lab.shell("control", "cat /etc/rancher/k3s/k3s.yaml").replace("127.0.0.1", "10.99.0.10")
    cluster.kubeconfig.touch(mode=0o600)
    cluster.kubeconfig.write_text(kubeconfig)
    eventually(lambda: len(cluster.get("nodes")["items"]), lambda count: count == len(HOSTS), 240)
    cluster.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=240s")
    cluster.seconds["nodes ready"] = time.monotonic() - begun
    cluster.apply(*yaml.safe_load_all(multus()))
    cluster.kubectl("-n", "kube-system", "rollout", "status", "daemonset/gb10-multus", "--timeout=180s")
    cluster.seconds["Multus ready"] = time.monotonic() - begun
    cluster.apply(namespace("rdma", "privileged"), network("rail0", "enp1s0f0v0"), network("rail1", "enP2p1s0f0v0"))
    for number, node in enumerate(NODES):
        networks = [{"name": "rail0", "interface": "net1", "ips": [f"10.100.0.{number + 1}/24"]}]
        cluster.apply(pod(f"rank{number}", node, networks=networks, securityContext={"privileged": True}))
    cluster.kubectl("-n", "rdma", "wait", "--for=condition=Ready", "pod", "rank0", "rank1", "--timeout=120s")
    print(f"\nafter the first `systemctl start`: { {what: round(when, 1) for what, when in cluster.seconds.items()} }")
    return cluster


def multus() -> str:
    """Return the manifest of role multus."""
    environment = jinja2.Environment(trim_blocks=True, autoescape=False)
    environment.filters |= {"to_json": json.dumps, "bool": bool}
    source = (CHECKOUT / "roles" / "multus" / "templates" / "multus.yml.j2").read_text()
    return environment.from_string(source).render(
        __multus_image=MULTUS, multus_pulled={}, multus_conf_dir=CNI, multus_bin_dir=CNI_BIN, multus_namespace="rdma",
        multus_namespace_isolation=True, multus_system_namespace="kube-system",
        multus_resources={"requests": {"cpu": "10m"}},
    )  # fmt: skip


def namespace(name: str, level: str) -> dict[str, Any]:
    """Return a namespace with a Pod Security level."""
    return {"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}}  # fmt: skip


def network(name: str, device: str) -> dict[str, Any]:
    """Return a host-device network; each pod sets its own addresses."""
    config = {"cniVersion": "1.0.0", "name": name, "type": "host-device", "device": device,
              "capabilities": {"ips": True},
              "ipam": {"type": "static"}}  # fmt: skip
    return {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": "rdma"}, "spec": {"config": json.dumps(config)}}  # fmt: skip


def pod(name: str, node: str, *, networks: list[dict[str, Any]] | None = None, **container: Any) -> dict[str, Any]:
    """Return a pod that sleeps on a node."""
    annotations = {"k8s.v1.cni.cncf.io/networks": json.dumps(networks)} if networks else {}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "rdma", "annotations": annotations},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 0,
                 "automountServiceAccountToken": False,
                 "containers": [{"name": "main", "image": SGLANG, "imagePullPolicy": "Never",
                                 "command": ["sleep", "86400"], **container}]},
    }  # fmt: skip


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 30) -> Any:
    """Repeat ``look`` until it returns a wanted value, and return the value."""
    end = time.monotonic() + seconds
    while not wanted(seen := look()):
        assert time.monotonic() < end, f"still: {seen}"
        time.sleep(0.5)
    return seen


def test_a_pod_of_another_namespace_joins_no_network(cluster: Cluster) -> None:
    """Multus refuses the one annotation, and the admission policy the other one, to which Multus is blind."""
    asked = pod("stranger", "spark2", networks=[{"name": "rail0", "namespace": "rdma", "interface": "net1"}])
    asked["metadata"]["namespace"] = "other"
    cluster.apply(namespace("other", "privileged"), asked)
    events = ("-n", "other", "events", "--for", "pod/stranger")
    eventually(lambda: cluster.kubectl(*events), lambda seen: "namespace isolation enabled" in seen, 120)
    assert cluster.get("-n", "other", "pod", "stranger")["status"]["phase"] == "Pending"
    cluster.kubectl("-n", "other", "delete", "pod", "stranger")
    asked["metadata"]["annotations"] = {"v1.multus-cni.io/default-network": "rdma/rail0"}
    said = cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(asked), check=False)
    assert "multus_namespace_isolation of role multus" in said


def test_pods_first_network_is_flannels_vxlan_with_limits_of_bandwidth(cluster: Cluster) -> None:
    """A packet of 1500 bytes minus VXLAN's 50 passes, and one more does not; the plugins are K3s's one program."""
    shell = cluster.lab.shell
    linked = shell("spark1", f"cd {CNI_BIN}; readlink bandwidth bridge firewall flannel host-local loopback portmap")
    assert len(linked.split()) == 7
    assert {path.rpartition("/")[2] for path in linked.split()} == {"cni"}
    assert all(path.startswith("/") for path in linked.split())
    types = [plugin["type"] for plugin in json.loads(shell("spark1", f"cat {CNI}/10-flannel.conflist"))["plugins"]]
    assert types == ["flannel", "portmap", "bandwidth"]
    device = shell("spark1", "ip -d link show flannel.1")
    assert "vxlan id 1 local 10.99.0.11 dev enP7s7" in device
    assert "mtu 1450" in device

    limited = pod("limited", "spark2")
    limited["metadata"]["annotations"] = {"kubernetes.io/ingress-bandwidth": "10M"}
    cluster.apply(limited)
    cluster.kubectl("-n", "rdma", "wait", "--for=condition=Ready", "pod", "limited", "--timeout=120s")
    assert "rate 10Mbit" in shell("spark2", "tc qdisc show")
    address = cluster.get("-n", "rdma", "pod", "limited")["status"]["podIP"]
    ping = ["-n", "rdma", "exec", "rank0", "--", "ping", "-c1", "-W2", "-Mdo"]
    assert "1 received" in cluster.kubectl(*ping, "-s1422", address)
    assert "Message too long" in cluster.kubectl(*ping, "-s1423", address, check=False)
    cluster.kubectl("-n", "rdma", "delete", "pod", "limited", "--wait=false")


LISTEN = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
# A traceback would quote this line. Therefore "reached" is put together only when it is printed.
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 8000), 3); print('rea' + 'ched')"


def test_network_policies_are_enforced_on_the_pods_own_network_only(cluster: Cluster) -> None:
    """The lab runs the network policy controller of K3s, which does not filter VFs in pods."""
    cluster.apply(pod("door", "spark1", command=["python3", "-c", LISTEN]), pod("guest", "spark2"))
    cluster.kubectl("-n", "rdma", "wait", "--for=condition=Ready", "pod", "door", "guest", "--timeout=120s")
    address = cluster.get("-n", "rdma", "pod", "door")["status"]["podIP"]

    def is_open(name: str) -> bool:
        return "reached" in cluster.kubectl(
            "-n", "rdma", "exec", name, "--", "python3", "-c", CONNECT, address, check=False
        )

    eventually(lambda: is_open("guest"), bool)
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
              "metadata": {"name": "closed", "namespace": "rdma"},
              "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}  # fmt: skip
    cluster.apply(policy)
    eventually(lambda: is_open("guest"), lambda seen: not seen)
    assert is_open("door")
    assert "1 received" in cluster.kubectl("-n", "rdma", "exec", "rank0", "--", "ping", "-c1", "-W2", "10.100.0.2")
    cluster.kubectl("-n", "rdma", "delete", "networkpolicy", "closed")
    eventually(lambda: is_open("guest"), bool)
    cluster.kubectl("-n", "rdma", "delete", "pod", "door", "guest", "--wait=false")


def test_a_vf_that_is_in_use_and_a_missing_network_are_reported(cluster: Cluster) -> None:
    for name, nad, reason in (
        ("second", "rail0", "failed to find host device"),
        ("lost", "rail7", "cannot find a network-attachment-definition"),
    ):
        cluster.apply(pod(name, "spark1", networks=[{"name": nad, "interface": "net1", "ips": ["10.100.0.9/24"]}]))
        eventually(
            lambda name=name: cluster.kubectl("-n", "rdma", "events", "--for", f"pod/{name}"),
            lambda out, reason=reason: reason in out,
            60,
        )
        cluster.kubectl("-n", "rdma", "delete", "pod", name, "--wait=false")


def test_device_nodes_are_seen_by_privileged_pods_and_by_those_that_were_given_them(cluster: Cluster) -> None:
    for resource, devices in (("nvidia.com/gpu", ""), ("rdma/gb10", "/dev/infiniband/*")):
        cluster.apply(device_plugin(resource, devices))
    eventually(
        lambda: [cluster.get("node", node)["status"]["allocatable"] for node in NODES],
        lambda seen: all(offer.get("nvidia.com/gpu") == offer.get("rdma/gb10") == "1" for offer in seen), 90,
    )  # fmt: skip
    unprivileged = {
        "allowPrivilegeEscalation": False,
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    cluster.apply(pod("plain", "spark1", securityContext=unprivileged))
    limits = {"limits": {"rdma/gb10": 1, "nvidia.com/gpu": 1}}
    cluster.apply(pod("given", "spark1", securityContext=unprivileged, resources=limits))
    cluster.kubectl("-n", "rdma", "wait", "--for=condition=Ready", "pod", "plain", "given", "rank0", "--timeout=120s")
    look = [
        "--",
        "sh",
        "-c",
        "ls /dev/infiniband 2>/dev/null; ls /run/gb10-lab/sys/class/infiniband >/dev/null && echo sysfs",
    ]
    seen = {name: cluster.kubectl("-n", "rdma", "exec", name, *look).split() for name in ("rank0", "plain", "given")}
    assert seen["plain"] == ["sysfs"]
    assert "uverbs0" in seen["rank0"]
    assert "uverbs0" in seen["given"]
    touched = cluster.kubectl("-n", "rdma", "exec", "plain", "--", "touch", "/run/gb10-lab/sys/x", check=False)
    assert "Read-only file system" in touched


def device_plugin(resource: str, devices: str) -> dict[str, Any]:
    """The lab's device plugin for one resource on every node."""
    name = re.sub(r"\W", "-", resource)
    labels = {"app": name}
    mounts = {"plugins": "/var/lib/kubelet/device-plugins", "dev": "/dev"}
    container = {
        "name": "main", "image": "localhost/gb10/device-plugin-standin:lab", "imagePullPolicy": "Never",
        "args": ["-resource", resource, *(["-devices", devices] if devices else [])],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
    }  # fmt: skip
    on_nodes = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(NODES)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_nodes]}}
    affinity = {"nodeAffinity": required}
    volumes = [{"name": volume, "hostPath": {"path": path}} for volume, path in mounts.items()]
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "rdma"},
            "spec": {"selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"affinity": affinity, "containers": [container], "volumes": volumes}}}}  # fmt: skip


def test_pod_security_refuses_what_its_level_forbids(cluster: Cluster) -> None:
    cluster.apply(namespace("strict", "restricted"))
    wanted = pod("loud", "spark1", securityContext={"privileged": True})
    wanted["metadata"]["namespace"] = "strict"
    out = cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(wanted), check=False)
    assert 'violates PodSecurity "restricted:latest"' in out


def test_pods_outlive_k3s_and_it_comes_back_after_kill_9(cluster: Cluster) -> None:
    before = cluster.get("-n", "rdma", "pod", "rank0")["status"]["containerStatuses"][0]
    for script in ("systemctl restart k3s-agent", "kill -9 $(systemctl show -P MainPID k3s-agent)"):
        cluster.lab.shell("spark1", script)
        eventually(
            lambda: cluster.lab.shell("spark1", "pgrep -xc kubelet || true; pgrep -xc containerd || true").split(),
            lambda seen: seen == ["1", "1"],
        )
        cluster.kubectl("wait", "--for=condition=Ready", "node", "spark1", "--timeout=60s")
    after = cluster.get("-n", "rdma", "pod", "rank0")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
