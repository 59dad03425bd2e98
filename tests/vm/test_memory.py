# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a host with 4 GiB whose page cache is full, and whose memory then runs out, with the guard and without it.

Real: role node_tuning with its unit, earlyoom and slices, the kernel, sshd, the start of a rank, its sidecar and the
supervisor. Simulated by simulated_node.py: the API server, the kubelet, and a server that takes memory as CUDA does.
The tests build on each other, in the order of this file; the last one needs none of the others.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from test_fabric import play
from vms import Vm, Vms

COVERS = ("roles/node_tuning", "plugins/modules/node_tuning.py", "lab/vm")

ROOT = Path(__file__).resolve().parents[2]
TUNE = ROOT / "playbooks" / "tune.yml"
OFF = {"headless": False, "memory_guard": False, "drop_caches": False, "swappiness": ""}
UNGUARDED = ("-e", json.dumps({f"node_tuning_{part}": value for part, value in OFF.items()}))
PROGRAM = "/usr/bin/python3 /opt/simulated_node.py"
SECRETS = ("var/run/secrets/gb10", "var/run/secrets/kubernetes.io/serviceaccount")
# MiB that the server of rank 1 and the hog take. Together with the system they need more than there is.
SERVER, HOG, SLOW_BELOW = 2100, 1700, 210
# Seconds: how soon sshd must answer, and what stands for no answer.
SOON, SILENT = 2, 20
# Seconds within which the hog takes the last memory of a host without the guard.
LAST = 400
GATE = {
    "instance": "g",
    "rank": 1,
    "pods": ["g-0-0", "g-1-0"],
    "rails": [],
    "expect": {"networks": ["IB"], "ranks": 1, "nodes": 2, "min_devices": 1, "complete": True, "gdr": None},
    "rdma": False,
    "port": 30000,
    "metrics_port": 30002,
    "sysfs_root": "/sys",
}
LIMITS = {"warn": 5, "stop": 4, "full": 20}


def unit(command: str, *settings: str) -> str:
    return "\n".join(["[Service]", f"ExecStart={command}", *settings, ""])


def started(number: int, words: str = "") -> str:
    return f"/usr/bin/python3 /opt/start_rank.py --nccl-logs /run/gb10-test/nccl-{number} {words} -- "


def rank(number: int, size: int, by: str, *settings: str) -> str:
    ready = f"/run/gb10-test/rank@{number}"
    return unit(
        f"{by}{PROGRAM} server {size} {30000 + 10 * number} {ready}",
        f"ExecStartPre=/bin/rm -f {ready}",
        "Slice=pods.slice",
        "Restart=on-failure",
        "RestartSec=5",
        *settings,
    )


def sidecar(limits: dict[str, int] | None) -> str:
    gate = json.dumps(GATE | {"memory": limits}).replace('"', '\\"')
    program = "/usr/bin/python3 -m gb10._pod.sidecar"
    api = "KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT=6443"
    return unit(
        f'{program} --nccl-logs /run/gb10-test/nccl-1 --state /run/gb10-test/state --interval 4 --gate "{gate}"',
        f"Environment=PYTHONPATH=/opt POD_NAMESPACE=s POD_UID=u {api}",
        "Slice=pods.slice",
    )


def files(directory: Path) -> dict[str, str]:
    """Return what the machine gets, by path."""
    pem, key = directory / "api.pem", directory / "api.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    units = "etc/systemd/system"
    supervisor = "/usr/bin/python3 -m gb10._pod.supervise --namespace s --pods g-0-0,g-1-0"
    programs = ("_pod.sidecar", "_pod.supervise")
    return {
        "opt/simulated_node.py": (ROOT / "tests/vm/simulated_node.py").read_text(),
        "opt/start_rank.py": (ROOT / "roles/sglang/files/start_rank.py").read_text(),
        **{str(path): text for name in programs for path, text in package_files(name, Path("opt")).items()},
        **{f"{place}/ca.crt": pem.read_text() for place in SECRETS},
        **{f"{place}/token": "t" for place in SECRETS},
        "opt/api.pem": pem.read_text() + key.read_text(),
        f"{units}/rank@0.service": rank(0, 32, started(0)),
        f"{units}/rank@1.service": rank(1, SERVER, started(1, f"--memory {SERVER / 1024} 0.95 3.5 3.5 300")),
        f"{units}/api.service": unit(f"{PROGRAM} api /opt/api.pem g-0-0 g-1-0"),
        f"{units}/sidecar.service": sidecar(LIMITS),
        f"{units}/supervisor.service": unit(
            f"{supervisor} --port 30000 --live-port 30003 --logs /run/gb10-test/logs",
            "Environment=PYTHONPATH=/opt KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT=6443",
            "Slice=pods.slice",
        ),
    }


class Ssh:
    """Asks sshd for its banner every second, and keeps how long each answer took; SILENT stands for no answer.

    The time in which other programs of this computer kept the machine from its CPUs does not count.
    """

    def __init__(self, vm: Vm) -> None:
        self.seconds: list[float] = []
        self.taken: list[float] = []
        self._port, self._over = vm.port, threading.Event()
        self._tasks = Path(f"/proc/{vm.pidfile.read_text().strip()}/task")
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._over.wait(1):
            begun, before = time.monotonic(), self._waited()
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=SILENT) as asked:
                    answered = asked.recv(64).startswith(b"SSH-2.0")
            except OSError:
                answered = False
            seconds = time.monotonic() - begun
            self.taken.append(max((now - before.get(task, now) for task, now in self._waited().items()), default=0))
            self.seconds.append(max(seconds - self.taken[-1], 0) if answered else SILENT)

    def _waited(self) -> dict[str, float]:
        """Return how many seconds each thread of the machine has waited for a CPU; a thread may end meanwhile."""
        found = {}
        for task in self._tasks.iterdir():
            with contextlib.suppress(OSError):
                found[task.name] = int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        return found

    def __enter__(self) -> Ssh:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(SILENT + 2)
        print(f"sshd: {len(self.seconds)} answers, the slowest after {max(self.seconds):.2f} s", end=" ")
        print(f"without the wait for a CPU, which was at most {max(self.taken):.2f} s")


class Host:
    """The machine."""

    def __init__(self, machines: Vms) -> None:
        self.machines, (self.vm,) = machines, machines.vms
        # A login takes seconds under emulation, so there is one for all commands.
        mux = ["-o", "ControlMaster=auto", "-o", f"ControlPath={machines.state}/mux", "-o", "ControlPersist=yes"]
        self._ssh = ["ssh", *machines.ssh_options(), *mux, "-p", str(self.vm.port), "root@127.0.0.1"]

    def do(self, script: str, ok: bool = True) -> str:
        done = subprocess.run([*self._ssh, script], text=True, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0 or not ok, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def put(self, wanted: dict[str, str]) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, text in wanted.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text.encode()), 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
        argv = ["ssh", *self.machines.ssh_options(), "-p", str(self.vm.port), "root@127.0.0.1"]
        subprocess.run(
            [*argv, "tar -x -C / --no-same-owner && systemctl daemon-reload"], input=packed.getvalue(), check=True
        )

    def wait(self, test: str, seconds: float) -> float:
        """Wait until a command of the machine succeeds; return how long it took."""
        begun = time.monotonic()
        while "yes" not in self.do(f"{test} > /dev/null && echo yes", ok=False):
            assert time.monotonic() - begun < seconds, f"not within {seconds} s: {test}\n{self.look()}"
            time.sleep(1)
        return time.monotonic() - begun

    def look(self) -> str:
        """Return what explains a failure."""
        units = " ".join(
            f"-u {name}" for name in ("rank@1", "api", "sidecar", "supervisor", "gb10-memory", "earlyoom", "hog")
        )
        return self.do(f"free -m; cat /proc/pressure/memory /run/gb10-test/events; journalctl -n 60 {units}", ok=False)

    def console(self) -> str:
        """Return what the kernel wrote last; it needs no answer of the machine."""
        return (self.machines.state / f"{self.vm.name}.console").read_text(errors="replace")[-1500:]

    def fill_the_page_cache(self) -> None:
        # The holes of a file fill the cache too, and faster than the emulated disk.
        self.do("truncate -s 4200M /var/weights; dd if=/var/weights of=/dev/null bs=1M status=none")

    def start_the_hog(self) -> None:
        unit = "systemd-run --quiet --unit=hog --slice=hog.slice -p OOMScoreAdjust=-1000"
        self.do(f"{unit} {PROGRAM} hog {HOG} {SLOW_BELOW}")


@pytest.fixture(scope="module")
def host(small: Vms, tmp_path_factory: pytest.TempPathFactory) -> Host:
    made = Host(small)
    made.put(files(tmp_path_factory.mktemp("api")))
    made.do("echo always > /sys/kernel/mm/transparent_hugepage/enabled")
    made.do("mkdir -p /run/gb10-test; cd /run/gb10-test; mkdir nccl-0 nccl-1 state logs; touch events")
    return made


def start_the_group(host: Host) -> None:
    host.do("systemctl start api sidecar supervisor")
    print(f"the group is up after {host.wait('test -e /run/gb10-test/rank@1', 200):.0f} s")


def test_a_rank_drops_its_own_files_from_a_full_page_cache_and_refuses_that_of_others(host: Host) -> None:
    small = "--memory 0.1 0.95 3.5 3.5 16"
    host.fill_the_page_cache()
    refused = host.do(f"{started(1, small)}/bin/true 2>&1", ok=False)
    print(refused)
    assert "GiB are free" in refused and "Let the node drop its caches (node_tuning_drop_caches: true" in refused
    # As a user without any privilege, who may only read the model.
    host.do("mkdir /var/model; mv /var/weights /var/model/; chmod 777 /run/gb10-test/nccl-1")
    start = started(1, f"{small} --model /var/model")
    said = host.do(f"setpriv --reuid=65534 --clear-groups {start}/bin/echo started 2>&1")
    print(said)
    assert said.endswith("started")
    host.do("rm -rf /var/model; chmod 755 /run/gb10-test/nccl-1; chown root /run/gb10-test/nccl-1/*")


def test_a_load_with_a_full_page_cache(host: Host) -> None:
    # Everything that is on by default.
    assert "earlyoom ends the server" in play(host.machines, "-v", playbook=TUNE)
    assert host.do("cat /proc/sys/vm/swappiness; systemctl get-default").split() == ["1", "multi-user.target"]
    assert host.do("systemctl is-active gb10-memory earlyoom").split() == ["active", "active"]
    assert host.do("cat /sys/fs/cgroup/system.slice/memory.min") == str(1536 << 20)
    host.fill_the_page_cache()
    host.wait("test $(awk '/^MemFree:/ {print $2}' /proc/meminfo) -gt 400000", 15)
    print(host.do("journalctl -o cat -u gb10-memory | grep 'dropped caches and compacted memory'"))
    start_the_group(host)


def test_the_group_is_stopped_and_comes_back_while_ssh_answers(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        host.start_the_hog()
        stopped = host.wait("grep -q g-1-0 /run/gb10-test/deleted", 180)
        assert host.do("cat /run/gb10-test/deleted").split() == ["g-0-0", "g-1-0"]
        host.wait("journalctl -u rank@1 | grep -q 'waiting for more'", 120)
        host.do("systemctl stop hog")
        back = host.wait("test -e /run/gb10-test/rank@1", 200)
    print(f"stopped after {stopped:.0f} s, back {back:.0f} s after the end of the hog")
    events, said = host.do("cat /run/gb10-test/events"), host.do("journalctl -o cat -u supervisor")
    print(f"{events}\n{said}")
    assert "g-1-0 MemoryLow: " in events and "g-1-0 MemoryOut: the node runs out of memory" in events
    assert "restarting the group: g-1-0: the node runs out of memory" in said
    assert "the next restart not before 30 s" in said
    assert max(ssh.seconds) < SOON


def test_without_the_guard_the_same_hog_silences_the_host(host: Host) -> None:
    host.do("systemctl stop hog; systemctl stop supervisor sidecar api 'rank@*'; rm -f /run/gb10-test/rank@*", ok=False)
    play(host.machines, *UNGUARDED, playbook=TUNE)
    # start_rank.py would make the server the first to be ended; the kernel alone does not see what CUDA takes.
    alone = rank(1, SERVER, "", "OOMScoreAdjust=-1000")
    host.put({"etc/systemd/system/rank@1.service": alone, "etc/systemd/system/sidecar.service": sidecar(None)})
    assert "active" not in host.do("systemctl is-active gb10-memory earlyoom", ok=False).split()
    assert host.do("cat /sys/fs/cgroup/system.slice/memory.min") == "0"
    host.do("echo 3 > /proc/sys/vm/drop_caches")
    start_the_group(host)
    with Ssh(host.vm) as ssh:
        host.start_the_hog()
        begun = time.monotonic()
        while SILENT not in ssh.seconds and time.monotonic() - begun < LAST:
            time.sleep(1)
        print(f"after {time.monotonic() - begun:.0f} s: {host.console()}")
    assert SILENT in ssh.seconds
