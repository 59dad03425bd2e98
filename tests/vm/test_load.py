# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load a checkpoint of 4 GiB with SGLang's own loader on a host of 6 GiB: with mmap it fits, without it does not.

An emulated machine imports PyTorch in minutes. So the rank starts once, and every test continues from the same snapshot
of the machine, in which the rank is about to load.
Real: the host and its kernel, sshd, the start of a rank with its watch of the load, SGLang's loader and PyTorch.
Simulated by load_weights.py: the rest of the server. The host has no other guard: role node_tuning has not run.
"""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import vms
from test_memory import SILENT, SOON, Host, Ssh, unit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from _sglang_environment import packages
from sglang_catalogue import unpack

COVERS = (
    "roles/sglang/files/watch_load.py",
    "roles/sglang/files/start_rank.py",
    "roles/sglang/files/front_door.py",
    "tests/vm/load_weights.py",
    "lab/vm",
)

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.5.23"
PROGRAMS = ("start_rank.py", "watch_load.py", "front_door.py", "ask_sglang.py")
# MiB of the machine, files of the checkpoint, layers of each, and the percentage of memory that ends a load: 0.6 GiB
MEMORY, FILES, LAYERS, STOP = 6144, 10, 4, 10
# Threads of the loader without mmap. With four the load needed 5.4 of 5.8 GiB, and came to its end.
THREADS = 8
TENSORS = {"q": (2048, 2048), "gate": (8192, 2048), "up": (8192, 2048), "down": (2048, 8192)}
FILE_GIB = LAYERS * sum(2 * rows * columns for rows, columns in TENSORS.values()) / 2**30
# Seconds for the import of PyTorch, and for a load.
IMPORTED_S, LOADED_S = 1200, 600
SNAPSHOT, BEGIN = "imported", "/run/gb10-test/begin"


def checkpoint() -> dict[str, str]:
    """Return the headers of a checkpoint. What follows them are holes, which the page cache holds as it holds data."""
    found = {}
    for file in range(FILES):
        header: dict[str, Any] = {}
        at = 0
        for layer in range(file * LAYERS, (file + 1) * LAYERS):
            for name, shape in TENSORS.items():
                end = at + 2 * shape[0] * shape[1]
                header[f"model.layers.{layer}.{name}.weight"] = {
                    "dtype": "BF16",
                    "shape": shape,
                    "data_offsets": [at, end],
                }
                at = end
        text = json.dumps(header)
        found[f"var/model/model-{file:02}.safetensors"] = text
    return found


def rank() -> str:
    watch = f"--watch-load=--port 30000 --stop {STOP} --key k --kept /run/gb10-test/kept.json"
    start = f'/opt/gb10/start_rank.py --nccl-logs /run/gb10-test/nccl "{watch}" --model /var/model'
    server = f"/usr/bin/python3 /opt/gb10/front_door.py load_weights /var/model {BEGIN}"
    own = ("PYTHONPATH=/opt/sglang", "GB10_POD_IPS=127.0.0.1", "TORCHDYNAMO_DISABLE=1", "PYTHONUNBUFFERED=1")
    settings = ["WorkingDirectory=/opt/gb10", "Slice=pods.slice", f"Environment={' '.join(own)}"]
    return unit(f"/usr/bin/python3 {start} -- {server}", *settings)


class Machine:
    """The machine, and its snapshot."""

    def __init__(self, directory: Path) -> None:
        self.made, self._qemu = vms.Vms(directory, 1, MEMORY), list[str]()
        self._monitor, cache = directory / "monitor", self.made.image.parent / "sglang"
        self.release, site = unpack(RELEASE, cache), packages(cache)
        disk = site.with_suffix(".img")
        if not disk.exists():
            subprocess.run(["truncate", "-s", "3G", directory / "new"], check=True)
            subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", site, directory / "new"], check=True)
            shutil.move(directory / "new", disk)
        drive = f"file={disk},if=virtio,format=raw,readonly=on,cache=unsafe"
        self._more = ["-drive", drive, "-monitor", f"unix:{self._monitor},server,nowait"]

    def start(self) -> Host:
        plain = vms.run

        def run(*words: object) -> None:
            if str(words[0]).startswith("qemu-system"):
                words = (*words, *self._more)
                self._qemu = [str(word) for word in words]
            plain(*words)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(vms, "run", run)
            self.made.start()
        return Host(self.made)

    def save(self) -> None:
        """Save the machine and stop it."""
        with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rwb", buffering=0) as stream:
            monitor.connect(str(self._monitor))
            stream.write(f"savevm {SNAPSHOT}\nquit\n".encode())
            said = stream.read().decode(errors="replace")
        assert "Error" not in said, said

    def again(self) -> Host:
        """Continue from the snapshot."""
        self.stop()
        vms.run(*self._qemu, "-loadvm", SNAPSHOT)
        self.made.wait(120)
        return Host(self.made)

    def stop(self) -> None:
        """Stop the machine, and wait until its last thread, which may outlive the first, has released its files."""
        ended = None
        with suppress(OSError, ValueError):
            ended = os.pidfd_open(int(self.made.vms[0].pidfile.read_text()))
        self.made.stop()
        if ended is not None:
            select.select([ended], [], [])
            os.close(ended)
        (self.made.state / "mux").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("load"))
    try:
        host = made.start()
        prepared(host, made.release)
        host.do("systemctl start rank")
        # Each question takes a second of the emulated processor.
        seconds = host.wait(f"sleep 5; {says('PyTorch is imported')}", IMPORTED_S)
        print(f"PyTorch was imported within {seconds:.0f} s")
        made.save()
        yield made
    finally:
        made.stop()


@pytest.fixture
def host(machine: Machine) -> Host:
    return machine.again()


def prepared(host: Host, release: Path) -> None:
    files = ROOT / "roles/sglang/files"
    host.put(
        {
            **{f"opt/gb10/{name}": (files / name).read_text() for name in PROGRAMS},
            "opt/gb10/load_weights.py": (ROOT / "tests/vm/load_weights.py").read_text(),
            "opt/weight_utils.py": (release / "sglang/srt/model_loader/weight_utils.py").read_text(),
            **{f"{name}.header": text for name, text in checkpoint().items()},
            "etc/systemd/system/neighbour.service": unit("/usr/bin/sleep infinity"),
            "etc/systemd/system/rank.service": rank(),
        }
    )
    whole = int(FILE_GIB * 2**30)
    host.do(
        "mkdir -p /opt/sglang /run/gb10-test/nccl; mount -o ro /dev/vdb /opt/sglang; systemctl start neighbour;"
        " cd /var/model; python3 - <<'END'\n"
        "from pathlib import Path\n"
        "for header in Path('.').glob('*.header'):\n"
        "    text = header.read_bytes()\n"
        "    with header.with_suffix('').open('wb') as file:\n"
        "        file.write(len(text).to_bytes(8, 'little') + text)\n"
        f"        file.truncate(8 + len(text) + {whole})\n"
        "    header.unlink()\n"
        "END"
    )


def says(line: str) -> str:
    return f"journalctl -o cat -u rank | grep -q '{line}'"


def begin(host: Host, threads: int) -> None:
    host.do(f"echo {threads} > {BEGIN}.new; mv {BEGIN}.new {BEGIN}")


def ledger(host: Host) -> tuple[Any, dict[str, float]]:
    """Return what the watch told, and the most GiB that were taken in each phase."""
    told = json.loads(host.do("cat /run/gb10-test/nccl/load.json"))
    return told, {name: peak["taken_gib"] for name, peak in told["phases"].items()}


def test_with_mmap_the_load_fits_as_predicted(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        begin(host, 0)
        seconds = host.wait(says("Load weight end"), LOADED_S)
    told, taken = ledger(host)
    predicted = taken["start"] + FILES * FILE_GIB
    print(f"with mmap: {seconds:.0f} s, {taken}, predicted {predicted:.2f} of {told['total_gib']} GiB")
    assert predicted == pytest.approx(taken["weights"], rel=0.15)
    assert max(ssh.seconds) < SOON


def test_without_mmap_the_load_is_ended_and_the_host_and_other_services_go_on(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        begin(host, THREADS)
        seconds = host.wait("! systemctl is-active rank", LOADED_S)
    said = host.do("journalctl -o cat -u rank; journalctl -o cat -k | grep -i 'out of memory'; true")
    told, taken = ledger(host)
    # min(2 * 8 + 1, 2 * 10) - min(8 + 1, 10) files beside the weights, as the plan says
    predicted = taken["start"] + (FILES + 8) * FILE_GIB
    print(f"without mmap: {seconds:.0f} s, {taken}, predicted {predicted:.2f} of {told['total_gib']} GiB\n{said}")
    assert "the load was ended in its phase weights before the node froze" in said and "Out of memory" not in said
    assert (told["state"], told["phase"]) == ("ended", "weights")
    assert predicted > told["total_gib"]
    assert host.do("systemctl is-active neighbour") == "active"
    assert max(ssh.seconds) < SOON


def test_without_the_watch_the_kernel_has_to_end_the_load(host: Host) -> None:
    host.do("kill -KILL $(systemctl show -p MainPID --value rank | xargs pgrep -f watch_load.py -P)")
    killed = "journalctl -o cat -k | grep -c 'Out of memory: Killed process'"
    with Ssh(host.vm) as ssh:
        begin(host, THREADS)
        begun = time.monotonic()
        # A host that does not answer ends the loop.
        with suppress(subprocess.TimeoutExpired):
            while SILENT not in ssh.seconds and host.do(killed, ok=False) in {"", "0"}:
                assert time.monotonic() - begun < LOADED_S, host.look()
                time.sleep(1)
    print(f"without the watch: after {time.monotonic() - begun:.0f} s; {host.console()[-400:]}")
