# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the fabric roles with real SR-IOV, GID tables, netplan, reboots and RDMA verbs.

The tests build on each other, in the order of this file, because a boot under emulation takes almost a minute.
"""

import json
import re
import shlex
import subprocess
import time
from io import BytesIO
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import (
    SCRIPT,
    Counters,
    bytes_by_path,
    delta,
    parse_counters,
)
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.attachments import nad
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import Bytes
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import Entry, doubt, judge
from vms import Vm, Vms

COVERS = (
    "roles/netplan",
    "roles/sriov",
    "plugins/module_utils/_fabric",
    "lab/vm",
)

FABRIC = Path(__file__).resolve().parents[2] / "playbooks" / "fabric.yml"
PODS = Path(__file__).resolve().parent / "pods.yml"
NUMVFS = "/sys/class/net/enp1s0/device/sriov_numvfs"


def play(machines: Vms, *arguments: str, playbook: Path = FABRIC, ok: bool = True) -> str:
    """Run a playbook over ssh, by default playbook fabric; return its output without line breaks."""
    argv = ["ansible-playbook", "-i", str(machines.inventory()), str(playbook), *arguments]
    started = time.monotonic()
    done = subprocess.run(argv, text=True, capture_output=True, timeout=900, check=False)
    print(f"{playbook.name} {' '.join(arguments)}: {time.monotonic() - started:.0f} s")
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def cni(machines: Vms, vm: Vm, command: str) -> None:
    """Call the plugins of the collection's NAD one after the other, as Multus does for a pod with VF 0."""
    network = {"nad": "gb10-rail0-vf0", "rail": "rail0", "device": "enp1s0v0"}
    config = json.loads(nad(network, "gb10-serving")["spec"]["config"])
    plugins = [{**plugin, "cniVersion": config["cniVersion"], "name": config["name"]} for plugin in config["plugins"]]
    plugins[0]["runtimeConfig"] = {"ips": [f"10.100.0.{vm.number}/24"]}
    done: dict[str, object] = {}
    for plugin in plugins if command == "ADD" else reversed(plugins):
        said = machines.ssh(
            vm,
            f"CNI_COMMAND={command} CNI_CONTAINERID=pod CNI_NETNS=/run/netns/cni-pod CNI_IFNAME=net1"
            f" CNI_PATH=/usr/lib/cni /usr/lib/cni/{plugin['type']} <<< '{json.dumps({**plugin, **done})}'",
        )
        done = {"prevResult": json.loads(said)} if command == "ADD" else {}


def gids(machines: Vms) -> list[str]:
    """Return the GID table of every machine's first VF."""
    script = "cat /sys/class/infiniband/rocep1s0v0/ports/1/gids/* 2>/dev/null | sort -u"
    return [machines.ssh(vm, script) for vm in machines.vms]


def mapped(number: int) -> str:
    """Return the GID of 10.100.0.<number>."""
    return f"0000:0000:0000:0000:0000:ffff:0a64:{number:04x}"


def wait_for_gids(machines: Vms) -> None:
    """Wait until networkd has set the addresses of the VFs again."""
    end = time.monotonic() + 120
    while not all(mapped(vm.number) in table for vm, table in zip(machines.vms, gids(machines), strict=True)):
        assert time.monotonic() < end, [machines.ssh(vm, "ip address; rdma link") for vm in machines.vms]
        time.sleep(2)


def test_machines_have_a_card_for_virtual_functions_and_no_virtual_function_yet(machines: Vms) -> None:
    for vm in machines.vms:
        assert machines.ssh(vm, f"cat {NUMVFS} $(dirname {NUMVFS})/sriov_totalvfs").split() == ["0", "7"]


def test_gid_of_ipv4_is_there_only_with_the_address(machines: Vms) -> None:
    said = play(machines)
    assert "4 directions on all rails and VFs pass with full-size packets" in said
    for vm in machines.vms:
        assert machines.ssh(vm, f"cat {NUMVFS}") == "2"
    assert all(mapped(vm.number) in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    for vm in machines.vms:
        machines.ssh(vm, "ip -4 address flush dev enp1s0v0")
    assert all(mapped(vm.number) not in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    for vm in machines.vms:
        machines.ssh(vm, "networkctl reconfigure enp1s0v0")
    wait_for_gids(machines)


def test_a_pod_gets_a_vf_with_mtu_and_address_and_returns_it(machines: Vms) -> None:
    for vm in machines.vms:
        machines.ssh(vm, "ip netns add cni-pod")
        cni(machines, vm, "ADD")
        inside = machines.ssh(vm, "ip -n cni-pod -j -4 address show dev net1")
        assert json.loads(inside)[0]["mtu"] == 9000
        assert f"10.100.0.{vm.number}" in inside
        assert "enp1s0v0" not in machines.ssh(vm, "ip -br link")
    said = play(machines, playbook=PODS)
    assert "2 directions on all rails and VFs pass with full-size packets" in said
    for vm in machines.vms:
        cni(machines, vm, "DEL")
        machines.ssh(vm, "ip netns delete cni-pod")
    # networkd sets the address again by itself, and the GID follows from the address
    wait_for_gids(machines)


def test_a_reboot_restores_everything_without_ansible(machines: Vms) -> None:
    before = [machines.ssh(vm, "ip -br link show enp1s0v0 | tr -s ' ' | cut -d' ' -f3") for vm in machines.vms]
    machines.reboot()
    for vm, mac in zip(machines.vms, before, strict=True):
        shown = machines.ssh(
            vm, "ip -br link show enp1s0v0; ip -br -4 address show enp1s0v0; cat /sys/class/net/enp1s0v*/mtu"
        )
        assert mac in shown
        assert f"10.100.0.{vm.number}/24" in shown
        assert shown.split()[-2:] == ["9000", "9000"]
    assert all(mapped(vm.number) in table for vm, table in zip(machines.vms, gids(machines), strict=True))
    one = machines.vms[0]
    assert "0% packet loss" in machines.ssh(one, "ping -M do -s 8972 -c 3 -W 10 -I enp1s0v0 10.100.0.2")


def test_a_second_run_changes_nothing_and_rdma_moves_data_between_the_vfs(machines: Vms) -> None:
    # soft-RoCE under emulation reaches a fraction of a Gb/s. This test only shows that data moves.
    floors = "fabric_check_half_floor=0.001 fabric_check_full_floor=0.001"
    said = play(machines, "-e", f"fabric_check_bandwidth=true {floors}")
    assert re.findall(r"vm\d : ok=\d+ changed=(\d+) unreachable=0 failed=0", said) == ["0", "0"]
    assert "1 of 1 pairs reach the floors" in said
    measured = re.search(r"vm\d → vm\d: rail0 \d+\.\d+ Gb/s", said)
    assert measured
    print(measured[0])


# What both exchanges move in one direction: 128 messages of 64 KiB; headers and acknowledgements are less than a tenth.
MESSAGES, SIZE = 128, 65536
NEEDED = Bytes(MESSAGES * SIZE, 1.02 * MESSAGES * SIZE, 1.1 * MESSAGES * SIZE)
VERBS = f"ib_write_bw -F -d rocep1s0v0 -x $gid -s {SIZE} -n {MESSAGES}"
TCP_SERVER = """import socket
c = socket.create_server(("", 5001)).accept()[0]
while c.recv(1 << 16): pass"""
TCP_CLIENT = f"""import socket
socket.create_connection(("10.100.0.2", 5001)).sendall(bytes({MESSAGES * SIZE}))"""
FORGED = "".join(
    f"vm1:7:7 [0] NCCL INFO {line}\n"
    for line in (
        "Using network IB",
        "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init START",
        "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init COMPLETE",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0",
    )
)


def counters(machines: Vms) -> list[dict[str, Counters]]:
    """Read the counters of both machines; the driver of a VF reads those of its card every two seconds."""
    time.sleep(5)
    script = f"sh -c {shlex.quote(SCRIPT)} sh /sys /sys"
    return [parse_counters(machines.ssh(vm, script)) for vm in machines.vms]


def ledger(machines: Vms, server: str, client: str) -> dict[str, Entry]:
    """Exchange bytes between the machines, and return what the ledger says about both."""
    index = "gid=$(basename $(grep -l {} /sys/class/infiniband/rocep1s0v0/ports/1/gids/* | tail -1)); {}"
    one, two = machines.vms
    before = counters(machines)
    machines.ssh(two, index.format(mapped(2), f"nohup {server} > /tmp/server.log 2>&1 < /dev/null &"))
    time.sleep(5)
    machines.ssh(one, index.format(mapped(1), client))
    found = {}
    for vm, then, now in zip(machines.vms, before, counters(machines), strict=True):
        moved = {kind: delta(then[kind], now[kind]) for kind in now}
        found[vm.name] = judge(NEEDED, *bytes_by_path(moved, {"rocep1s0v0"}))
        print(f"{vm.name}: {found[vm.name].msg}; {moved['rdma']['rocep1s0v0']} {moved['net']['enp1s0v0']}")
    return found


def test_the_ledger_calls_a_verbs_exchange_without_nccl_rdma(machines: Vms) -> None:
    entries = ledger(machines, VERBS, f"{VERBS} 10.100.0.2")
    assert [entry.verdict for entry in entries.values()] == ["rdma", "rdma"]
    assert doubt("rdma", entries) == ""


def test_the_ledger_calls_tcp_with_a_forged_log_of_nccl_tcp(machines: Vms) -> None:
    report = Report(NcclLog().read(BytesIO(FORGED.encode()).read), "forged")
    assert report.verdict.transport_class == "rdma"
    server, client = (f"python3 -c {shlex.quote(program)}" for program in (TCP_SERVER, TCP_CLIENT))
    entries = ledger(machines, server, client)
    assert [entry.verdict for entry in entries.values()] == ["tcp", "tcp"]
    assert "Doubt the log" in doubt(report.verdict.transport_class, entries)
