# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts as reading
from ansible_collections.gb10.cluster.plugins.module_utils._node.commands import Answer
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import (
    NETWORK_UNITS,
    RUNTIME_UNITS,
    Facts,
    Roots,
    read_host,
)
from preflight_samples import PF
from sysfs_samples import pci_function, rdma_port, write

OS_RELEASE = 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
wlP9s9 00000000 0100A8C0 0003 0 0 600 00000000 0 0 0
enP7s7 00000000 0100A8C0 0003 0 0 100 00000000 0 0 0
enP7s7 0000A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x
   1: 0100007F:280A 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 x
"""


UFW = "Status: active\n\nTo    Action  From\n--    ------  ----\n22/tcp    ALLOW  Anywhere\n53/udp  DENY  x\n"
NETPLAN = "** WARNING **: too open.\nCommand failed: /etc/netplan/90-NM-1.yaml:1:2: Error in network definition\n"
ACTIVE = "LoadState=loaded\nActiveState=active\n"
IPV6_ROUTES = (
    f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 1 0 0 lo\n{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} 64 1 0 0 usb0"
)
ADDRESSES = [
    {"family": "inet", "local": "192.168.177.12", "prefixlen": 24, "scope": "global", "dynamic": True},
    {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
]
PORT = {"ifname": "enp1s0f0np0", "max_mtu": 9978, "master": "bond0", "addr_info": ADDRESSES}


class Host:
    """A host below a directory, and the answers of its commands."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.answers: dict[str, str | Answer] = {}
        self.roots = Roots(
            **{name: str(top / name) for name in ("sysfs", "proc", "etc", "dev", "netns", "cgroup", "top")}
        )

    def run(self, command: list[str]) -> Answer:
        answer = self.answers.get(" ".join(command), Answer(None))
        return Answer(0, answer) if isinstance(answer, str) else answer

    def read(self, *paths: str, controller_time: float | None = None) -> Facts:
        return read_host(self.roots, paths, self.run, controller_time)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    sysfs, proc = tmp_path / "sysfs", tmp_path / "proc"
    write(tmp_path / "etc/os-release", OS_RELEASE.rstrip())
    write(tmp_path / "cgroup/cgroup.controllers", "cpu memory")
    write(proc / "sys/kernel/osrelease", "6.14.0-1013-nvidia")
    write(proc / "cmdline", "quiet iommu=pt")
    write(proc / "meminfo", "MemTotal:  125000000 kB\nSwapTotal: 1024 kB\nCmaTotal: 0 kB\nCmaFree: 9751756 kB")
    write(proc / "modules", "nvidia_uvm 1 0 - Live 0x0 (OE)\nmlx5_core 1 0 - Live 0x0")
    write(
        tmp_path / "etc/dgx-release",
        'DGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="7.3.1"\nDGX_SERIAL_NUMBER="1"\nDGX_OTA_VERSION="26.09.2"',
    )
    write(sysfs / "class/dmi/id/bios_version", "5.36_0ACUM018")
    write(proc / "net/route", ROUTES.rstrip())
    write(proc / "net/dev", "Inter-|\n face |\n    lo: 1 2\nenP7s7: 1 2\nwlP9s9: 0 0")
    write(proc / "net/tcp", TCP.rstrip())
    write(proc / "net/ipv6_route", IPV6_ROUTES.rstrip())
    write(proc / "swaps", "Filename Type Size Used Priority\n/swap.img file 16777212 0 -2")
    write(tmp_path / "etc/netplan/40-cx7.yaml", "network: {ethernets: {enp1s0f0np0: {dhcp4: true}}}")
    write(tmp_path / "etc/netplan/90-NM-1.yaml", "network: {ethernets: {enp1s0f0np01: {}}}")
    write(tmp_path / "etc/netplan/70-gb10.yaml", "# Written by gb10.cluster\nnetwork: {ethernets: {enp1s0f0np0: {}}}")
    write(tmp_path / "etc/systemd/system/k3s.service", "Description=K3s server, installed by gb10.cluster")
    write(tmp_path / "top/usr/bin/nvidia-container-runtime", "")
    write(tmp_path / "top/etc/kubernetes/kubelet.conf", "")
    write(
        proc / "driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release"
    )
    write(proc / "77/comm", "python3")
    (proc / "77/fd").mkdir()
    (proc / "77/fd/3").symlink_to("socket:[4711]")
    function = pci_function(sysfs, "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
    (sysfs / "bus/pci/drivers/mlx5_core").mkdir(parents=True)
    (function / "driver").symlink_to(sysfs / "bus/pci/drivers/mlx5_core")
    device = function / "infiniband/rocep1s0f0"
    rdma_port(device, {0: ("fe80::1", "RoCE v2", "enp1s0f0np0")})
    write(device / "fw_ver", "28.45.4028")
    (sysfs / "class/infiniband").mkdir()
    (sysfs / "class/infiniband/rocep1s0f0").symlink_to(device)
    (sysfs / "class/net/wlP9s9/wireless").mkdir(parents=True)
    write(sysfs / "module/ib_core/parameters/netns_mode", "Y")
    write(tmp_path / "dev/infiniband/uverbs0", "")
    made.answers = {
        "ip -d -j address show": json.dumps([PORT, {}]),
        "netplan get": Answer(0, "", NETPLAN),
        "ufw status": UFW,
        "nvidia-smi --query-gpu=name,utilization.gpu,clocks.sm,clocks.max.sm,enforced.power.limit,power.default_limit,"
        "clocks_event_reasons.active --format=csv,noheader,nounits": "NVIDIA GB10, 96, 850, 3003, [N/A], [N/A], 0x84\n",
        "/usr/local/bin/k3s --version": "k3s version v1.36.4+k3s1 (abc)\ngo version go1.26\n",
        f"systemctl show --property=LoadState,ActiveState {' '.join(NETWORK_UNITS)}": f"{ACTIVE}\n{ACTIVE}",
        "dpkg-query --show --showformat=${Package} ${Version} ${db:Status-Status}\\n": "\n".join(
            ("nvidia-container-toolkit 1.18.0-1 installed", "nvidia-old 1 config-files", "bash 5.2 installed")
        ),
        "timedatectl show --property=NTPSynchronized --value": "yes\n",
        f"systemctl show --property=ActiveState,UnitFileState,LimitMEMLOCK {' '.join(RUNTIME_UNITS)}": "\n".join(
            f"LimitMEMLOCK={limit}\nActiveState={active}\nUnitFileState={enabled}\n"
            for limit, active, enabled in (
                ("8388608", "active", "enabled"),
                ("", "inactive", ""),
                ("8388608", "inactive", "disabled"),
                ("infinity", "inactive", "enabled"),
                ("", "inactive", ""),
                ("", "inactive", ""),
                ("8388608", "active", "enabled"),
            )
        ),
    }
    return made


def test_everything_is_read(host: Host) -> None:
    facts = host.read(str(host.top / "models/not/yet"))
    assert facts["user"]["uid"] == os.geteuid()
    assert facts["os"] == {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"}
    assert (facts["kernel"], facts["command_line"]) == ("6.14.0-1013-nvidia", "quiet iommu=pt")
    assert (facts["memory_kib"], facts["cma_kib"], facts["cma_free_kib"]) == (125000000, 0, 9751756)
    assert (facts["dgx_os"], facts["bios"], facts["gpu_module"]) == ("26.09.2", "5.36_0ACUM018", "open")
    assert facts["modules"] == ["mlx5_core", "nvidia_uvm"]
    assert facts["packages"] == {"nvidia-container-toolkit": "1.18.0-1"}
    assert facts["swap"] == [{"name": "/swap.img", "kind": "file", "kib": 16777212}]
    assert facts["kubernetes"] == {
        "units": {"k3s.service": True},
        "version": "v1.36.4+k3s1",
        "others": ["kubeadm"],
        "settings": {},
        "kubeconfig": False,
    }
    assert facts["gpu_runtime"] == "/usr/bin/nvidia-container-runtime"
    assert facts["gpus"] == [
        {
            "name": "NVIDIA GB10",
            "utilization": 96,
            "clock_mhz": 850,
            "max_clock_mhz": 3003,
            "power_limit_w": None,
            "default_power_limit_w": None,
            "slowdown": 0x84,
        }
    ]
    assert facts["netplan"] == {
        "error": "/etc/netplan/90-NM-1.yaml:1:2: Error in network definition",
        "files": [{"path": str(host.top / "etc/netplan/40-cx7.yaml"), "interfaces": ["enp1s0f0np0"]}],
    }
    assert facts["network_services"]["NetworkManager.service"] == {"LoadState": "loaded", "ActiveState": "active"}
    assert facts["firewall"] == {"active": True, "allowed": ["22/tcp"]}
    assert (facts["cgroup_version"], facts["time_synchronized"]) == (2, True)
    assert facts["runtime_memlock"] == {"k3s.service": 8388608, "docker.service": None, "rke2-agent.service": 8388608}
    assert facts["gpu_driver"] == "580.95.05"
    assert facts["rdma"] == {"devices": ["rocep1s0f0"], "device_nodes": 1, "shared_mode": True}
    assert facts["interfaces"] == ["enP7s7", "lo", "wlP9s9"]
    assert facts["addresses"] == {"enp1s0f0np0": ["192.168.177.12"]}
    assert (facts["wifi"], facts["default_routes"]) == (["wlP9s9"], ["enP7s7", "wlP9s9", "usb0"])
    assert facts["listeners"] == [{"port": 10250, "process": "python3"}]
    assert facts["disks"][0]["free_gib"] > 0
    assert list(facts["written"]) == ["/etc", "/usr/local", "/var/lib"]
    assert not any(state["read_only"] for state in facts["written"].values())
    assert facts["written"]["/etc"]["free_mib"] > 0
    assert facts["records"] == []
    lease = {"address": "192.168.177.12/24", "dynamic": True}
    assert facts["pfs"] == [PF | {"total_vfs": 8, "addresses": [lease], "master": "bond0"}]
    assert json.loads(json.dumps(facts)) == facts


def test_two_of_everything_are_read_and_odd_lines_are_not(host: Host, tmp_path: Path) -> None:
    proc, sysfs, etc = (tmp_path / name for name in ("proc", "sysfs", "etc"))
    write(proc / "swaps", "Filename Type Size Used Priority\n/a file 1 0 -2\nodd\nodd type size\n/b partition 2 0 -2")
    write(etc / "os-release", f"\nVARIANT=\n{OS_RELEASE.rstrip()}")
    write(proc / "meminfo", "MemTotal:  125000000 kB\nodd\nCmaTotal: no kB\nCmaFree: 9751756 kB")
    write(proc / "modules", "b 1\n\na 1")
    for name in ("k3s.service", "k3s-agent.service"):
        write(
            etc / "systemd/system" / name, "Description=K3s" + ", installed by gb10.cluster" * (name != "k3s.service")
        )
    (tmp_path / "top/var/lib/k0s").mkdir(parents=True)
    write(tmp_path / "top/usr/local/nvidia/toolkit/nvidia-container-runtime", "")
    (sysfs / "class/net/wlan1/wireless").mkdir(parents=True)
    write(sysfs / "module/ib_core/parameters/netns_mode", "N")
    (sysfs / "class/infiniband/another").mkdir()
    function = pci_function(sysfs, "enp1s0f1np1", "0000:01:00.1", total_vfs=8)
    (function / "current_link_speed").unlink()
    second = [*ADDRESSES, {}, {"local": "10.0.0.1", "prefixlen": 8, "scope": "global"}]
    links = [PORT | {"addr_info": second}, {"ifname": "x", "master": "bond1"}, {"master": "bond2"}]
    host.answers["ip -d -j address show"] = json.dumps(links)
    (query,) = [command for command in host.answers if command.startswith("nvidia-smi")]
    host.answers[query] = "odd\nNVIDIA GB10, 1, 2, 3, 4, 5, 0x10\nNVIDIA B200, 96, 850, 3003, [N/A], 140.5, 0x84\n"
    (query,) = [command for command in host.answers if command.startswith("dpkg-query")]
    host.answers[query] = "nvidia-a 1 installed\nnvidia-odd installed\nnvidia-four 1 installed x\ndgx-b 2 installed\n"
    host.answers["ufw status"] = "Status: inactive\n\n22/tcp    ALLOW  Anywhere\nodd\n53/udp  ALLOW IN  x\n"
    write(etc / "netplan/40-cx7.yaml", "network: {ethernets: {enp1s0f0np0: {}, enp1s0f1np1: {}}}")
    facts = host.read(str(tmp_path), str(tmp_path / "second"))
    assert facts["swap"] == [
        {"name": "/a", "kind": "file", "kib": 1},
        {"name": "/b", "kind": "partition", "kib": 2},
    ]
    assert facts["os"]["name"] == "Ubuntu 24.04.3 LTS"
    assert (facts["memory_kib"], facts["cma_kib"], facts["cma_free_kib"]) == (125000000, None, 9751756)
    assert facts["modules"] == ["a", "b"]
    assert facts["kubernetes"]["units"] == {"k3s.service": False, "k3s-agent.service": True}
    assert facts["kubernetes"]["others"] == ["k0s", "kubeadm"]
    assert facts["gpu_runtime"] == "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    assert facts["wifi"] == ["wlP9s9", "wlan1"]
    assert facts["rdma"] == {"devices": ["another", "rocep1s0f0"], "device_nodes": 1, "shared_mode": False}
    assert facts["addresses"] == {"enp1s0f0np0": ["192.168.177.12", "10.0.0.1"], "x": []}
    ports = [(port["name"], port["driver"], port["rdma_device"], port["pcie_gts"]) for port in facts["pfs"]]
    assert ports == [("enp1s0f0np0", "mlx5_core", "rocep1s0f0", 32.0), ("enp1s0f1np1", None, None, None)]
    assert [each["dynamic"] for each in facts["pfs"][0]["addresses"]] == [True, False]
    assert [port["master"] for port in facts["pfs"]] == ["bond0", None]
    gpus = facts["gpus"] or []
    assert [(gpu["name"], gpu["slowdown"], gpu["default_power_limit_w"]) for gpu in gpus] == [
        ("NVIDIA GB10", 16.0, 5.0),
        ("NVIDIA B200", 132.0, 140.5),
    ]
    assert facts["packages"] == {"nvidia-a": "1", "dgx-b": "2"}
    assert facts["firewall"] == {"active": False, "allowed": ["22/tcp", "53/udp"]}
    assert facts["netplan"]["files"][0]["interfaces"] == ["enp1s0f0np0", "enp1s0f1np1"]
    assert [disk["path"] for disk in facts["disks"]] == [str(tmp_path), str(tmp_path / "second")]


def test_the_default_routes_are_those_of_both_families_in_their_order(host: Host) -> None:
    zero, other = "0" * 32, "f" * 32
    rows = [
        (zero, "00", "00000100", "far0"),
        (zero, "00", "00000064", "near0"),
        (zero, "40", "00000001", "prefix0"),
        (other, "00", "00000001", "elsewhere0"),
        (zero, "00", "00000001", "lo"),
    ]
    text = [f"{to} {length} {zero} 00 {zero} {metric} 1 0 0 {name}" for to, length, metric, name in rows]
    write(host.top / "proc/net/ipv6_route", "\n".join([*text, "odd"]))
    write(
        host.top / "proc/net/route",
        f"{ROUTES}odd\neth9 00000000 0 0003 0 0 x 00000000 0 0 0\naaa0 00000000 0 0003 0 0 900 00000000 0 0 0",
    )
    assert host.read()["default_routes"] == ["enP7s7", "wlP9s9", "aaa0", "near0", "far0"]


def test_listeners_of_both_families_are_read_with_or_without_their_process(host: Host) -> None:
    line = "   0: 00000000000000000000000000000000:192B 0:0 0A 0:0 00:0 0 0 0 {} 1 x"
    write(host.top / "proc/net/tcp6", "\n".join(["head", line.format(5000), "odd", line.format(5001)]))
    # A file that the process closes meanwhile can no longer be read as a link; its other ones are its own all the same.
    (host.top / "proc/77/fd/0").write_text("")
    (host.top / "proc/77/fd/4").symlink_to("/dev/null")
    (host.top / "proc/77/fd/5").symlink_to("socket:[9999]")
    (host.top / "proc/77/fd/6").symlink_to("socket:[5001]")
    write(host.top / "proc/78/status", "ended")
    assert host.read()["listeners"] == [
        {"port": 6443, "process": None},
        {"port": 6443, "process": "python3"},
        {"port": 10250, "process": "python3"},
    ]
    (host.top / "proc/77/comm").unlink()
    assert host.read()["listeners"][-1] == {"port": 10250, "process": "77"}


def test_routes_of_all_tables_and_name_servers_are_read(host: Host) -> None:
    assert (host.read()["routes"], host.read()["nameservers"]) == ({}, [])
    routes: list[Any] = [
        {"dst": "default", "dev": "enP7s7"},
        {"dst": "10.42.0.0/16", "dev": "tailscale0", "table": "52"},
        {"dst": "10.42.0.0/16", "dev": "tailscale0"},
        {"dst": "172.17.0.0/16", "dev": "docker0", "scope": "link"},
        {"type": "local", "dst": "172.17.0.1", "dev": "docker0", "table": "local"},
        {"type": "blackhole", "dst": "10.0.0.0/8"},
        {"dev": "odd"},
        "odd",
    ]
    host.answers["ip -j route show table all"] = json.dumps(routes)
    write(host.top / "etc/resolv.conf", "# x\nnameserver 127.0.0.53\nnameserver\nsearch lan\nnameserver 127.0.0.53")
    write(host.top / "top/run/systemd/resolve/resolv.conf", "nameserver 10.43.0.10")
    facts = host.read()
    assert facts["routes"] == {"tailscale0": ["10.42.0.0/16"], "docker0": ["172.17.0.0/16"]}
    assert facts["nameservers"] == ["127.0.0.53", "10.43.0.10"]


def test_images_and_the_sizes_of_models_are_read(host: Host) -> None:
    host.answers["/k3s ctr --namespace k8s.io images list --quiet"] = "docker.io/a/b:1\n"
    host.answers["ctr --namespace k8s.io images list --quiet"] = "sha256:00\n"
    models = host.top / "models"
    for name in ("org--a/x.safetensors", "org--a/deep/y", "org--b/z.part"):
        write(models / name, "")
        os.truncate(models / name, 2**29)
    (models / "file").write_text("")
    facts = read_host(host.roots, (), host.run, None, "/k3s", str(models))
    assert facts["images"] == ["docker.io/a/b:1", "sha256:00"]
    assert facts["staged"] == {"org--a": 1.0, "org--b": 0.5, "file": 0.0}
    host.answers.clear()
    facts = host.read()
    assert (facts["images"], facts["staged"]) == ([], {})


def test_disks_are_measured_in_gib_and_what_does_not_answer_is_unknown(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=3 * 2**40, free=2**30 + 2**30 // 4)
    state = SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID, f_bavail=3 * 2**10, f_frsize=2**12)
    monkeypatch.setattr(reading.shutil, "disk_usage", lambda _path: usage)
    monkeypatch.setattr(reading.os, "statvfs", lambda _path: state)
    top = str(host.top)
    facts = host.read(top)
    device = host.top.stat().st_dev
    assert facts["disks"] == [{"path": top, "device": device, "total_gib": 3072.0, "free_gib": 1.2}]
    assert facts["written"]["/etc"] == {"read_only": True, "free_mib": 12}
    state.f_flag = os.ST_NOSUID
    assert host.read()["written"]["/etc"]["read_only"] is False

    def stale(_path: object) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(reading.shutil, "disk_usage", stale)
    monkeypatch.setattr(reading.os, "statvfs", stale)
    facts = host.read("/srv")
    assert facts["disks"] == [{"path": "/srv", "device": None, "total_gib": None, "free_gib": None}]
    assert facts["written"]["/etc"] == {"read_only": None, "free_mib": None}


def test_a_user_without_a_name_has_its_number(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(reading.pwd, "getpwuid", nobody)
    monkeypatch.setenv("SUDO_USER", "nvidia")
    assert host.read()["user"] == {"uid": os.geteuid(), "name": str(os.geteuid()), "sudo_from": "nvidia"}


@pytest.mark.parametrize(
    ("active", "enabled", "there"),
    [("active", "disabled", True), ("inactive", "enabled", True), ("inactive", "disabled", False)],
)
def test_a_runtime_counts_that_runs_or_starts_at_boot(host: Host, active: str, enabled: str, there: bool) -> None:
    (query,) = [command for command in host.answers if "LimitMEMLOCK" in command]
    host.answers[query] = f"odd\nLimitMEMLOCK=5\nActiveState={active}\nUnitFileState={enabled}\nNote=a=b\n"
    assert host.read()["runtime_memlock"] == ({"k3s.service": 5} if there else {})


def test_the_clock_is_compared_with_the_controller_s(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.read()["clock_offset_s"] is None
    assert abs(host.read(controller_time=time.time() - 3600)["clock_offset_s"] - 3600) < 60
    monkeypatch.setattr(reading.time, "time", lambda: 1000.16)
    assert host.read(controller_time=1000.0)["clock_offset_s"] == 0.2


def test_an_empty_host_is_unknown_and_not_an_error(tmp_path: Path) -> None:
    bare = Host(tmp_path)
    facts = bare.read()
    assert facts["kernel"] is None
    assert facts["cgroup_version"] is None
    assert facts["time_synchronized"] is None
    assert facts["rdma"] == {"devices": [], "device_nodes": 0, "shared_mode": None}
    assert facts["pfs"] == []
    assert facts["kubernetes"] == {"units": {}, "version": "", "others": [], "settings": {}, "kubeconfig": False}
    assert (facts["gpus"], facts["swap"], facts["network_services"], facts["runtime_memlock"]) == (None,) * 4
    assert facts["netplan"] == {"error": None, "files": []}
    assert facts["firewall"] == {"active": False, "allowed": []}


def test_netplan_files_that_cannot_be_read_and_valid_ones(host: Host) -> None:
    host.answers["netplan get"] = Answer(1, "", "Permission denied\n")
    assert host.read()["netplan"]["error"] == "Permission denied"
    host.answers["netplan get"] = Answer(1, "", "")
    assert host.read()["netplan"]["error"] == "exit status 1"
    host.answers["netplan get"] = Answer(0, "network: {}\n", "** WARNING **: Permissions are too open.\n")
    assert host.read()["netplan"]["error"] is None


def test_cgroup_version_one_has_no_list_of_controllers(host: Host) -> None:
    (host.top / "cgroup/cgroup.controllers").unlink()
    assert host.read()["cgroup_version"] == 1


def test_a_namespace_without_a_process_is_an_orphan(host: Host) -> None:
    write(host.top / "netns/cni-dead", "")
    for process in ("77", "78"):
        write(host.top / f"netns/cni-of-{process}", "")
        (host.top / f"proc/{process}/ns").mkdir(parents=True)
        os.link(host.top / f"netns/cni-of-{process}", host.top / f"proc/{process}/ns/net")
    links = [{"ifname": "lo"}, {"ifname": "net1", "ifalias": "enp1s0f0v0", "address": "02:95:2a:00:01:00"}]
    host.answers["ip -n cni-dead -d -j link show"] = json.dumps(links)
    dead = {"namespace": "cni-dead", "links": [{"name": "net1", "alias": "enp1s0f0v0", "mac": "02:95:2a:00:01:00"}]}
    assert host.read()["orphan_namespaces"] == [dead]
    # A pod and a process that ended meanwhile.
    (host.top / "netns/cni-gone").symlink_to("nothing")
    (host.top / "proc/11/ns").mkdir(parents=True)
    (host.top / "proc/11/ns/net").symlink_to("nothing")
    write(host.top / "netns/cni-second", "")
    two = [{}, "odd", {"ifname": "net1"}, {"ifname": "net2"}]
    host.answers["ip -n cni-second -d -j link show"] = json.dumps(two)
    names = [{"name": name, "alias": "", "mac": ""} for name in ("net1", "net2")]
    assert host.read()["orphan_namespaces"] == [dead, {"namespace": "cni-second", "links": names}]
    for odd in ("3", "no JSON", ""):
        host.answers["ip -n cni-second -d -j link show"] = odd
        assert host.read()["orphan_namespaces"][1]["links"] == []


CONFIG = """\
# Written by gb10.cluster, role k3s.
cluster-cidr:
- 10.52.0.0/16
- fd00::/56
data-dir: '/srv/k3s'
node-ip: 192.168.10.11
kubelet-arg:
- node-ip: 1.2.3.4
secrets-encryption: true
token: secret
"""
USED = {
    "data-dir": "/srv/k3s",
    "cluster-cidr": "10.52.0.0/16,fd00::/56",
    "service-cidr": "10.43.0.0/16",
    "cluster-dns": "",
    "secrets-encryption": "true",
    "node-ip": "",
}


def test_settings_that_a_started_k3s_uses(host: Host) -> None:
    write(host.top / "etc/rancher/k3s/config.yaml", CONFIG)
    # The playbook wrote the file, and was interrupted before it started K3s.
    assert host.read()["kubernetes"]["settings"] == {}
    write(host.top / "top/srv/k3s/server/token", "secret")
    assert host.read()["kubernetes"]["settings"] == USED
    # A member of etcd cannot change its address.
    (host.top / "top/srv/k3s/server/db/etcd").mkdir(parents=True)
    assert host.read()["kubernetes"]["settings"] == USED | {"node-ip": "192.168.10.11"}
    assert host.read()["kubernetes"]["kubeconfig"] is False
    write(host.top / "etc/rancher/k3s/k3s.yaml", "secret")
    assert host.read()["kubernetes"]["kubeconfig"] is True


def test_settings_of_a_cluster_are_unknown_without_its_configuration(host: Host) -> None:
    write(host.top / "top/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "")
    assert host.read()["kubernetes"]["settings"] == {}
    write(host.top / "etc/rancher/k3s/config.yaml", "node-name: spark1\n")
    assert host.read()["kubernetes"]["settings"]["data-dir"] == "/var/lib/rancher/k3s"


def test_the_release_and_the_module_of_other_hosts(host: Host) -> None:
    version = "NVRM version: NVIDIA UNIX aarch64 Kernel Module  580.173.02  Release Build"
    write(host.top / "proc/driver/nvidia/version", version)
    write(host.top / "etc/dgx-release", 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"')
    facts = host.read()
    assert (facts["gpu_driver"], facts["gpu_module"], facts["dgx_os"]) == ("580.173.02", "proprietary", "7.2.3")


def process(host: Host, number: int, comm: str, gib: float, cgroup: str) -> None:
    top = host.top / "proc" / str(number)
    write(top / "comm", comm)
    write(top / "status", f"Name: {comm}\nVmRSS:   {int(gib * 2**20)} kB")
    write(top / "cgroup", f"0::{cgroup}")


def test_who_holds_memory_outside_kubernetes(host: Host) -> None:
    digits = "0123456789abcdef" * 4
    process(host, 201, "python3", 1.5, f"/system.slice/docker-{digits}.scope")
    process(host, 202, "VLLM::Worker", 1.5, f"/system.slice/docker-{digits}.scope")
    process(host, 203, "ollama", 0.1, "/system.slice/ollama.service")
    process(host, 204, "python3", 90, "/kubepods.slice/kubepods-pod1.slice")
    process(host, 205, "sglang", 2, "/user.slice/user-1000.slice")
    process(host, 206, "bash", 1.9, "/user.slice/user-1000.slice")
    process(host, 210, "k3s-server", 3, "/system.slice/k3s.service")
    host.answers["docker ps --format {{.ID}} {{.Names}}"] = f"{digits[:12]} vllm-node\nx\n"
    apps = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
    host.answers[apps] = "203, 40960\n205, [N/A]\n"
    assert host.read()["memory_holders"] == [
        {"kind": "unit", "name": "ollama.service", "kib": 40 * 2**20},
        {"kind": "docker", "name": "vllm-node", "kib": 3 * 2**20},
        {"kind": "program", "name": "sglang", "kib": 2 * 2**20},
    ]
    # A container that Docker does not name, a process without a name, and one that the GPU alone counts.
    process(host, 207, "x", 9, f"/system.slice/docker-{'f' * 64}.scope")
    process(host, 208, "x", 8, "/user.slice")
    (host.top / "proc/208/comm").unlink()
    write(host.top / "proc/209/comm", "y")
    host.answers[apps] = "odd\n209, 7168\n"
    assert host.read()["memory_holders"][:3] == [
        {"kind": "docker", "name": "f" * 12, "kib": 9 * 2**20},
        {"kind": "program", "name": "208", "kib": 8 * 2**20},
        {"kind": "program", "name": "y", "kib": 7 * 2**20},
    ]


def told(taken: dict[str, float], **more: Any) -> dict[str, Any]:
    phases = {name: {"taken_gib": gib} for name, gib in taken.items()}
    about = {"key": "k", "state": "ready", "phase": "warm-up", "at": "2026-11-29T08:00:00Z"}
    return {**about, "total_gib": 119.7, "before_gib": 9.5, "phases": phases, **more}


def test_what_loads_took_is_read_and_nothing_else(host: Host) -> None:
    more = {"graphs_gib": 1.5, "compiler_gib": 2.25, "compilers_gib": 4.5, "jobs": "4"}
    later = told({"weights": 90}, state="ended", phase="graphs", at="2026-11-30T08:00:00Z", **more)
    written = {
        "a/load-s-g.json": json.dumps(later),
        "b/load-s-g.json": json.dumps(told({"weights": 90, "graphs": 101.5, "warm-up": 99})),
        "b/load-s-none.json": json.dumps(told({})),
        "b/load-s-loads.json": json.dumps(told({"weights": 90}, state="loads")),
        "b/load-s-text.json": json.dumps(told({"weights": 90}, total_gib="much")),
        "b/load-s-jobs.json": json.dumps(told({"weights": 90}, jobs="many")),
        "b/load-s-deep.json": "[" * 9000,
        "b/load-s-list.json": "[]",
        "b/.load-s-g.json": "{}",
        "b/triton.json": "{}",
    }
    caches = host.top / "caches"
    for name, text in written.items():
        write(caches / name, text)
    (caches / "b/load-s-link.json").symlink_to(caches / "b/load-s-g.json")
    os.mkfifo(caches / "b/load-s-pipe.json")
    (caches / "b/load-s-dir.json").mkdir()
    first, second = read_host(host.roots, (), host.run, cache_dir=str(caches))["loads"]
    assert first["state"] == "ready" and (first["phase"], first["taken_gib"]) == ("graphs", 101.5)
    assert (second["state"], second["phase"], second["taken_gib"]) == ("ended", "graphs", 90)
    assert first["peaks"] == {"weights": 90, "graphs": 101.5, "warm-up": 99} and first["jobs"] == 0
    compiled = second["compiler_gib"], second["compilers_gib"], second["jobs"]
    assert (second["graphs_gib"], *compiled) == (1.5, 2.25, 4.5, 4)
    assert host.read()["loads"] == []


LOG = """\
pcieport 0000:00:00.0: AER: Correctable error message received from 0000:01:00.0
mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer
mlx5_core 0000:01:00.0: AER: Multiple Uncorrectable (Fatal) error message received
NVRM: Xid (PCI:000f:01:00): 79, pid=1, name=python3, GPU has fallen off the bus.
NVRM: RmInitAdapter failed! (0x24:0x72:1589)
NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05
mlx5_core 0000:01:00.0 enp1s0f0np0: Link down
mlx5_core 0000:01:00.0 enp1s0f0np0: Link up
mlx5_core 0000:01:00.0: mlx5_cq_completion: CQE error on CQN 0x4
"""


def test_what_the_kernel_said_since_boot(host: Host) -> None:
    journal = "journalctl --dmesg --boot --no-pager --quiet --output=cat"
    for command in (journal, "dmesg --notime"):
        host.answers.pop(journal, None)
        host.answers[command] = LOG
        log = host.read()["kernel_log"]
        assert log is not None
        counts = {kind: message["count"] for kind, message in log.items()}
        assert counts == {"corrected": 1, "aer": 2, "xid": 1, "nvrm": 1, "link": 1, "nic": 1}
        assert log["aer"]["last"].endswith("AER: Multiple Uncorrectable (Fatal) error message received")
    host.answers["dmesg --notime"] = Answer(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    host.answers.pop(journal, None)
    assert host.read()["kernel_log"] is None
    host.answers["dmesg --notime"] = "quiet\n"
    assert host.read()["kernel_log"] == {}
    host.answers["dmesg --notime"] = "NVRM: Xid " + "x" * 300
    assert host.read()["kernel_log"] == {"xid": {"count": 1, "last": "NVRM: Xid " + "x" * 190}}
