# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json

from ansible_collections.gb10.cluster.plugins.modules import k3s_leftovers


def test_mounts_deepest_first_and_nothing_beside() -> None:
    table = "\n".join(
        f"x {point} t rw 0 0"
        for point in (
            "/",
            "/run/k3s",
            "/run/k3s/containerd/a\\040b/rootfs",
            "/run/k3s-other",
            "/run/netns/cni-1",
            "/run/netns/mine",
            "/var/lib/kubelet/pods/u/volumes/v",
        )
    )
    assert k3s_leftovers.mounts_below(f"\nx\n{table}\n", k3s_leftovers.MOUNT_ROOTS) == [
        "/var/lib/kubelet/pods/u/volumes/v",
        "/run/k3s/containerd/a b/rootfs",
        "/run/netns/cni-1",
        "/run/k3s",
    ]


def test_only_k3s_s_own_containers_and_what_they_run() -> None:
    commands = {
        1: "/sbin/init",
        10: "/var/lib/rancher/k3s/data/x/bin/containerd-shim-runc-v2 -address /run/k3s/containerd/containerd.sock",
        11: "/pause",
        12: "sglang",
        13: "worker",
        20: "/usr/bin/containerd-shim-runc-v2 -address /run/docker/containerd.sock",
        21: "nginx",
        30: "tail -f /run/k3s/log",
        # Either the socket or the program tells K3s's own.
        40: "/opt/bin/containerd-shim-runc-v2 -address /run/k3s/containerd/containerd.sock",
        41: "/var/lib/rancher/k3s/data/x/bin/containerd-shim-runc-v2 -address /run/other.sock",
    }
    parents = {10: 1, 11: 10, 12: 10, 13: 12, 20: 1, 21: 20, 30: 1, 40: 10}
    assert k3s_leftovers.container_processes(commands, parents, "/var/lib/rancher/k3s") == [10, 40, 41, 11, 12, 13]


def test_a_vf_in_a_pod_is_known_by_its_alias() -> None:
    links = [{"ifname": "lo", "ifalias": "loop"}, {"ifname": "eth0"}, {"ifname": "net1", "ifalias": "enp1s0f0v0"}]
    assert k3s_leftovers.stray_links(json.dumps(links)) == {"net1": "enp1s0f0v0"}
    assert k3s_leftovers.stray_links("") == {}


def test_rules_of_other_programs_stay() -> None:
    ours = ":KUBE-SERVICES - [0:0]\n-A INPUT -j KUBE-SERVICES\n"
    saved = f"*filter\n:INPUT ACCEPT [0:0]\n{ours}-A INPUT -p tcp -j ACCEPT\nCOMMIT\n"
    assert k3s_leftovers.filtered_rules(saved) == saved.replace(ours, "")


def test_routes_into_the_pods_network() -> None:
    routes = [
        {"dst": "default"},
        {"dst": "10.42.1.0/24"},
        {"dst": "10.99.0.0/24"},
        {"dst": "10.42.3.4"},
        {"dst": "fd00::/64"},
    ]
    assert k3s_leftovers.pod_routes(json.dumps(routes), "10.42.0.0/16") == ["10.42.1.0/24", "10.42.3.4"]
    assert k3s_leftovers.pod_routes(json.dumps(routes), "10.42.0.0/16,fd00:42::/56") == ["10.42.1.0/24", "10.42.3.4"]
    assert k3s_leftovers.pod_routes(json.dumps(routes), "fd00:42::/56, 10.1.0.0/16, 10.42.0.0/16")[-1] == "10.42.3.4"
    assert k3s_leftovers.pod_routes("", "10.42.0.0/16") == []
