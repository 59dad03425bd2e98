# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the lab's hosts and their simulated SR-IOV and RDMA devices."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labcommand import LabCommand

COVERS = ("lab/gb10lab", "lab/hosts", "lab/labctl", "lab/images")

HOSTS = ["control", "spark1", "spark2"]
SYS = "/run/gb10-lab/sys"
PF = f"{SYS}/class/net/enp1s0f0np0/device"
VF = f"{SYS}/class/infiniband/rocep1s0f0v0/ports/1"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a64:0001"
# the simulated devices react within 0.1 s and a host boots in 2 s; a machine busy with other tests takes longer
SOON_S, BOOT_S = 10, 60


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[], LabCommand]) -> LabCommand:
    """Return a lab with two nodes and the control host."""
    lab = make_lab()
    # NetworkManager would set new VFs up; these tests check only the simulated devices.
    lab.up(nodes=2, hosts="kind")
    return lab


@pytest.fixture
def vf(lab: LabCommand) -> LabCommand:
    """Return the lab with one VF without an address on the first rail of spark1 and of spark2."""
    for host in ("spark1", "spark2"):
        lab.shell(host, f"echo 0 > {PF}/sriov_numvfs")
        eventually(lab, host, "ip -br link", lambda out: "enp1s0f0v" not in out)
        lab.shell(host, f"echo 1 > {PF}/sriov_numvfs")
        eventually(lab, host, f"cat {VF}/gids/0", lambda out: out.startswith("fe80"))
    return lab


def is_uuid(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) is not None


def eventually(lab: LabCommand, host: str, script: str, wanted: Callable[[str], bool], within: float = SOON_S) -> str:
    """Repeat a script until it prints the wanted output, and return the output."""
    end = time.monotonic() + within
    while True:
        # exec fails while a host reboots
        out = lab("exec", host, "--", "bash", "-c", f"({script}) 2>&1", check=False).strip()
        if wanted(out):
            return out
        assert time.monotonic() < end, f"{host}: {script} still prints:\n{out}"


def test_hosts_are_booted_and_untouched(lab: LabCommand) -> None:
    assert lab.shell("spark1", "systemctl is-system-running") == "running"
    assert lab.shell("spark1", f"cat {PF}/sriov_numvfs {PF}/sriov_totalvfs").split() == ["0", "4"]
    assert lab.shell("spark1", "cat /sys/class/net/enp1s0f0np0/mtu") == "1500"
    assert lab.shell("control", "ls /sys/class/net").split() == ["enP7s7", "lo"]
    # containerd can't put an overlay on an overlay
    assert lab.shell("spark1", "stat -f -c %T /var/lib/rancher /var/lib/containerd").count("overlay") == 0


def test_the_labs_network_has_no_route_to_the_outside(lab: LabCommand) -> None:
    links = json.loads(lab("run", "--", "ip", "-j", "link"))
    # `loose` are the ends of ports without a cable
    loose = {f"spark{number}-r{slot}" for number in (1, 2) for slot in (2, 3)}
    own = {link["ifname"] for link in links if link.get("master") is None}
    assert own == {"lo", "mgmt", "rail0", "rail1"} | loose
    assert lab("run", "--", "ip", "route", "show", "default") == ""


def test_numvfs_makes_and_removes_interfaces(lab: LabCommand) -> None:
    lab.shell("spark1", f"echo 0 > {PF}/sriov_numvfs")
    eventually(lab, "spark1", "ls /sys/class/net", lambda out: "v0" not in out)
    lab.shell("spark1", f"echo 3 > {PF}/sriov_numvfs")
    eventually(lab, "spark1", "ls /dev/infiniband", lambda out: out.count("uverbs") == 4 + 3)
    links = json.loads(lab.shell("spark1", "ip -j link"))
    vfs = {link["ifname"]: link for link in links if re.fullmatch(r"enp1s0f0v\d", link["ifname"])}
    assert sorted(vfs) == ["enp1s0f0v0", "enp1s0f0v1", "enp1s0f0v2"]
    assert {link["mtu"] for link in vfs.values()} == {1500}
    assert not any("UP" in link["flags"] for link in vfs.values())
    assert lab.shell("spark1", f"readlink -f {PF}/virtfn2/physfn").endswith("0000:01:00.0")
    lab.shell("spark1", f"echo 0 > {PF}/sriov_numvfs")
    eventually(lab, "spark1", "ls /sys/class/net /dev/infiniband", lambda out: "v0" not in out and "uverbs4" not in out)


@pytest.mark.parametrize(("written", "reason"), [("2", "EBUSY"), ("5", "ERANGE"), ("many", "EINVAL")])
def test_numvfs_is_refused_as_the_kernel_would(vf: LabCommand, written: str, reason: str) -> None:
    vf.shell("spark1", f"echo {written} > {PF}/sriov_numvfs")
    eventually(vf, "spark1", f"cat {PF}/sriov_numvfs", lambda out: out == "1")
    log = "journalctl -u gb10-fabric-standin -o cat"
    eventually(vf, "spark1", log, lambda out: f"refused: '{written}'" in out and reason in out)


def test_gid_comes_and_goes_with_the_address(vf: LabCommand) -> None:
    assert vf.shell("spark1", f"cat {VF}/gids/2") == "0000:0000:0000:0000:0000:0000:0000:0000"
    assert vf.shell("spark1", f"ls {VF}/gid_attrs/types").split() == ["0", "1"]
    vf.shell("spark1", "ip link set enp1s0f0v0 up; ip address add 10.100.0.1/24 dev enp1s0f0v0")
    eventually(vf, "spark1", f"cat {VF}/gids/3", lambda out: out == MAPPED)
    assert vf.shell("spark1", f"cat {VF}/gid_attrs/types/2 {VF}/gid_attrs/types/3") == "IB/RoCE v1\nRoCE v2"
    assert vf.shell("spark1", f"cat {VF}/gid_attrs/ndevs/3 {VF}/state") == "enp1s0f0v0\n4: ACTIVE"
    vf.shell("spark1", "ip address del 10.100.0.1/24 dev enp1s0f0v0")
    eventually(vf, "spark1", f"cat {VF}/gids/3", lambda out: set(out) == {"0", ":"})


def test_gid_follows_the_interface_into_a_pod(vf: LabCommand) -> None:
    vf.shell("spark1", "ip address add 10.100.0.1/24 dev enp1s0f0v0")
    eventually(vf, "spark1", f"cat {VF}/gids/3", lambda out: out == MAPPED)
    vf.shell("spark1", "ip netns add pod; ip link set enp1s0f0v0 netns pod name net1")
    eventually(vf, "spark1", f"cat {VF}/gids/3", lambda out: set(out) == {"0", ":"})
    vf.shell("spark1", "ip -n pod link set net1 up; ip -n pod address add 10.100.0.1/24 dev net1")
    eventually(vf, "spark1", f"cat {VF}/gids/3 {VF}/gid_attrs/ndevs/3", lambda out: out == f"{MAPPED}\nnet1")
    vf.shell("spark1", f"echo 0 > {PF}/sriov_numvfs")
    eventually(vf, "spark1", "ip -n pod link show net1", lambda out: "does not exist" in out)
    vf.shell("spark1", "ip netns delete pod")


def test_mtu_follows_and_full_frames_pass_only_when_all_agree(vf: LabCommand) -> None:
    for number in (1, 2):
        vf.shell(
            f"spark{number}", f"ip link set enp1s0f0v0 mtu 9000 up; ip address add 10.100.0.{number}/24 dev enp1s0f0v0"
        )
    assert vf.shell("spark1", f"cat {SYS}/class/net/enp1s0f0v0/mtu") == "9000"
    ping = "ping -q -c 1 -W 1 -M do -s 8972 10.100.0.2"
    assert " 0% packet loss" in eventually(vf, "spark1", ping, lambda out: " 0% packet loss" in out)
    vf.shell("spark2", "ip link set enp1s0f0v0 mtu 1500")
    assert "100% packet loss" in vf.shell("spark1", f"{ping} || true")


def test_rdma_counters_move_only_when_traffic_is_declared(vf: LabCommand) -> None:
    counter = f"cat {VF}/counters/port_xmit_data"
    for number in (1, 2):
        vf.shell(f"spark{number}", f"ip link set enp1s0f0v0 up; ip address add 10.100.0.{number}/24 dev enp1s0f0v0")
    send = "ping -q -c 3 -i 0.2 -s 1000 10.100.0.2"
    vf.shell("spark1", f"{send}; sleep 0.3")
    assert vf.shell("spark1", counter) == "0"
    vf.shell("spark1", "printf '4000 8000\\n4000 0\\n' > /run/gb10-lab/rdma-traffic/rocep1s0f0v0")
    eventually(vf, "spark1", counter, lambda out: out == "2000")
    vf.shell("spark1", f"echo interface >> /run/gb10-lab/rdma-traffic/rocep1s0f0v0; sleep 0.3; {send}")
    eventually(vf, "spark1", counter, lambda out: int(out) > 2000 + 3 * 1000 // 4)
    vf.shell("spark1", "rm /run/gb10-lab/rdma-traffic/rocep1s0f0v0")


@pytest.mark.parametrize("how", ["labctl", "host"])
def test_reboot_forgets_vfs_but_not_files(vf: LabCommand, how: str) -> None:
    boot = vf.shell("spark1", "cat /proc/sys/kernel/random/boot_id")
    vf.shell("spark1", "touch /etc/kept; ip address add 10.100.9.1/24 dev enp1s0f0np0")
    if how == "labctl":
        vf("reboot", "spark1")
    else:
        vf("exec", "spark1", "--", "reboot", check=False)
        # systemd still says "running" for a moment before it stops
        eventually(
            vf, "spark1", "cat /proc/sys/kernel/random/boot_id", lambda out: is_uuid(out) and out != boot, BOOT_S
        )
        eventually(vf, "spark1", "systemctl is-system-running", lambda out: out == "running", BOOT_S)
    assert vf.shell("spark1", "cat /proc/sys/kernel/random/boot_id") != boot
    assert vf.shell("spark1", f"cat {PF}/sriov_numvfs; ls /etc/kept") == "0\n/etc/kept"
    addresses = vf.shell("spark1", "ip -br -4 address")
    assert "10.99.0.11/24" in addresses
    assert "10.100" not in addresses


def test_standin_restarts_without_losing_vfs(vf: LabCommand) -> None:
    vf.shell("spark1", "ip address add 10.100.0.1/24 dev enp1s0f0v0; systemctl kill -s KILL gb10-fabric-standin")
    eventually(vf, "spark1", "systemctl is-active gb10-fabric-standin", lambda out: out == "active")
    eventually(vf, "spark1", f"cat {PF}/sriov_numvfs {VF}/gids/3", lambda out: out == f"1\n{MAPPED}")


def test_a_running_lab_grows_and_does_not_shrink(make_lab: Callable[[], LabCommand]) -> None:
    lab = make_lab()
    lab.up()
    lab.shell("spark1", "touch /run/kept")
    interrupted = lab.start("up", "--nodes", "2", "--no-kubernetes")
    time.sleep(1)
    interrupted.kill()
    interrupted.wait()
    lab.up(nodes=2)
    assert lab.shell("spark1", "ls /run/kept; getent hosts spark2") == "/run/kept\n10.99.0.12      spark2"
    everybody = lab("run", "--", "ansible", "-i", f"{lab.state}/inventory", "all", "--list-hosts")
    assert [word for word in everybody.split() if word.startswith(("control", "spark"))] == HOSTS
    lab("up", "--nodes", "1", "--no-kubernetes", check=False)
    assert lab.shell("spark2", "hostname") == "spark2"
    lab("down")


def test_refuses_a_directory_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    lab = LabCommand(tmp_path)
    lab("up", "--nodes", "1", "--no-kubernetes", check=False)
    lab("down", check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
