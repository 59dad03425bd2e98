# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run virtual machines: two with one SR-IOV network card each, a ring of more, or a single one without a card.

Containers cannot do this: they have no SR-IOV, and they share the memory of this machine.

Real: SR-IOV (QEMU's igb), the kernel's GID tables, netplan, reboots, RDMA verbs and perftest. Simulated: soft-RoCE
instead of a ConnectX, so bandwidth figures mean nothing. Without KVM a boot takes almost a minute.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(__file__).resolve().parent / "build"
BOOT = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 apparmor=0 selinux=0 random.trust_cpu=on tsc=reliable"
    " root=/dev/vda rw net.ifnames=1"
)


class VmError(Exception):
    """A virtual machine did not boot; the text has the end of its console."""


@dataclass(frozen=True)
class Vm:
    """One machine: its files in ``directory``, ssh on this machine's loopback at ``port``."""

    name: str
    number: int
    port: int
    directory: Path

    @property
    def pidfile(self) -> Path:
        """File in which QEMU writes its process id."""
        return self.directory / f"{self.name}.pid"

    def socket(self, card: int) -> Path:
        """Return the end of the cable in a card."""
        return self.directory / f"{self.name}.{card}.sock"


class Vms:
    """All machines of one state directory. Two have one cable; more form a ring, card 0 to card 1 of the next one.

    A single machine has no card. ``memory`` is in MiB.
    """

    def __init__(self, state: Path, count: int = 2, memory: int = 1024) -> None:
        self.state, self.memory = state, memory
        # The test of a single machine runs several programs at once.
        self.cpus = 2 if count == 1 else 1
        state.mkdir(parents=True, exist_ok=True)
        self.image = Path(subprocess.run([BUILD], check=True, text=True, stdout=subprocess.PIPE).stdout.strip())
        self.vms = [Vm(f"vm{number}", number, free_port(), state) for number in range(1, count + 1)]

    def start(self) -> None:
        """Boot all machines from fresh disks and wait for ssh. Raises VmError."""
        for vm in self.vms:
            cards: list[object] = []
            for card, peer in enumerate(self.peers(vm)):
                cards += [
                    "-device", f"pcie-root-port,id=rp{card},chassis={card + 1}",
                    "-netdev", f"dgram,id=n{card},local.type=unix,local.path={vm.socket(card)},"
                    f"remote.type=unix,remote.path={peer}",
                    "-device", f"igb,bus=rp{card},netdev=n{card},mac=52:54:00:aa:0{card}:0{vm.number},romfile=",
                ]  # fmt: skip
            disk = self.state / f"{vm.name}.qcow2"
            run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", self.image / "disk.img", disk)
            run(
                "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max",
                "-smp", self.cpus, "-m", self.memory,
                "-kernel", self.image / "vmlinux", "-initrd", self.image / "initrd.img",
                "-append", f"{BOOT} systemd.hostname={vm.name}",
                "-drive", f"file={disk},if=virtio,cache=unsafe",
                "-netdev", f"user,id=m,restrict=on,hostfwd=tcp:127.0.0.1:{vm.port}-:22",
                # lldpd names its host after this MAC, and QEMU's own one is the same in every machine.
                "-device", f"virtio-net-pci,netdev=m,mac=52:54:00:bb:00:0{vm.number},romfile=",
                *cards, "-display", "none", "-nodefaults", "-serial", f"file:{self.state / vm.name}.console",
                "-daemonize", "-pidfile", vm.pidfile,
            )  # fmt: skip
        self.wait()

    def peers(self, vm: Vm) -> list[Path]:
        """Return the other end of each cable of a machine, by card."""
        if len(self.vms) == 1:
            return []
        after, before = self.vms[vm.number % len(self.vms)], self.vms[vm.number - 2]
        return [after.socket(0)] if len(self.vms) == 2 else [after.socket(1), before.socket(0)]

    def wait(self, patience: float = 900, boot_ids: dict[str, str] | None = None) -> None:
        """Wait until all machines have booted; with ``boot_ids`` until they have booted again."""
        end = time.monotonic() + patience
        script = "cat /proc/sys/kernel/random/boot_id && systemctl is-system-running --wait"
        for vm in self.vms:
            while True:
                identity = self.ssh(vm, script, ok=False)
                if identity and identity.split()[0] != (boot_ids or {}).get(vm.name):
                    break
                if time.monotonic() > end:
                    console = (self.state / f"{vm.name}.console").read_text(errors="replace")[-2000:]
                    raise VmError(f"{vm.name} did not boot within {patience:.0f} s; its console ends:\n{console}")
                time.sleep(2)

    def reboot(self) -> None:
        """Reboot all machines and wait for them."""
        before = {vm.name: self.ssh(vm, "cat /proc/sys/kernel/random/boot_id") for vm in self.vms}
        for vm in self.vms:
            self.ssh(vm, "systemctl reboot", ok=False)
        self.wait(boot_ids=before)

    def ssh(self, vm: Vm, script: str, ok: bool = True, timeout: float = 120) -> str:
        """Run a script in a machine and return its output; with ``ok`` False, a failure is not an error."""
        argv = ["ssh", *self.ssh_options(), "-p", str(vm.port), "root@127.0.0.1", script]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            if ok:
                raise VmError(f"{vm.name}: no answer within {timeout:.0f} s to: {script}") from error
            return ""
        if ok and done.returncode != 0:
            raise VmError(f"{vm.name}: {script}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def ssh_options(self) -> list[str]:
        """Return ssh's options: use the key from the cache; keep no host keys, as the machines exist for minutes."""
        key = self.image.parent / "vm-ssh-key"
        return ["-i", str(key), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=20"]  # fmt: skip

    def inventory(self) -> Path:
        """Write an ordinary inventory of the machines; JSON is YAML."""
        hosts: dict[str, dict[str, object]] = {
            vm.name: {"ansible_host": "127.0.0.1", "ansible_port": vm.port, "gb10_node_id": vm.number}
            for vm in self.vms
        }
        port = {"pf": "enp1s0", "pf_rdma": "rocep1s0"}
        fabric: dict[str, object] = {"gb10_fabric_rails": [{"name": "rail0", **port, "network": "10.100.0.0/16"}]}
        if len(self.vms) > 2:
            rails = []
            for one, two in zip(self.vms, [*self.vms[1:], self.vms[0]], strict=True):
                rail, members = f"ring{one.number}{two.number}", [one.name, two.name]
                rails.append({"name": rail, **port, "network": f"10.10{one.number}.0.0/16", "hosts": members})
                hosts[two.name]["gb10_fabric_pfs"] = {rail: {"name": "enp2s0", "rdma_device": "rocep2s0"}}
            fabric = {"gb10_fabric_topology": "ring", "gb10_fabric_rails": rails}
        variables = {
            "ansible_user": "root",
            "ansible_ssh_common_args": " ".join(self.ssh_options()),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_timeout": 120,
            **fabric,
            "gb10_fabric_vf_count": 2,
            "gb10_fabric_mtu": 9000,
            "gb10_results_dir": str(self.state),
            "netplan_settle_timeout": 180,
            "netplan_undo_timeout": 600,
            "sriov_timeout": 180,
            "sriov_boot_timeout": 300,
            "fabric_check_wait": 20,
            "fabric_check_count": 5,
        }
        path = self.state / "inventory.yml"
        path.write_text(json.dumps({"gb10_nodes": {"hosts": hosts, "vars": variables}}, indent=2))
        return path

    def stop(self) -> None:
        """Power all machines off, at once."""
        for vm in self.vms:
            if vm.pidfile.exists():
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(vm.pidfile.read_text()), signal.SIGKILL)


def free_port() -> int:
    """Return a free TCP port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*words: object) -> None:
    """Run a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise VmError(f"{words[0]}: {done.returncode}: {done.stdout}{done.stderr}")
