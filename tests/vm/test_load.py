# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load a checkpoint of 4 GiB with SGLang's own loader on a host of 6 GiB: with mmap it fits, without it does not.

Real: the host and its kernel, sshd, the start of a rank with its watch of the load, SGLang's loader and PyTorch.
Simulated by load_weights.py: the rest of the server. The host has no other guard: role node_tuning has not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vms
from test_memory import SILENT, SOON, Host, Ssh, unit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from _sglang_environment import prepare
from sglang_catalogue import CACHE, unpack

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
# An emulated machine imports PyTorch in minutes.
LOADED_S = 1500


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


def load(threads: int, stop: float) -> str:
    watch = f"--watch-load=--port 30000 --stop {stop:g} --key k --kept /run/gb10-test/kept.json"
    start = f'/opt/gb10/start_rank.py --nccl-logs /run/gb10-test/nccl "{watch}" --model /var/model'
    server = f"/usr/bin/python3 /opt/gb10/front_door.py load_weights /var/model {threads}"
    own = ("PYTHONPATH=/opt/sglang", "GB10_POD_IPS=127.0.0.1", "TORCHDYNAMO_DISABLE=1", "PYTHONUNBUFFERED=1")
    settings = ["WorkingDirectory=/opt/gb10", "Slice=pods.slice", f"Environment={' '.join(own)}"]
    # A container starts with an empty /tmp.
    settings.append("ExecStartPre=/bin/rm -rf /tmp/gb10-stacks")
    return unit(f"/usr/bin/python3 {start} -- {server}", *settings)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("load")
    release = unpack(RELEASE)
    packages, disk = prepare(release, CACHE)[-1], directory / "packages.img"
    subprocess.run(["truncate", "-s", "3G", disk], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", packages, disk], check=True)
    made, plain = vms.Vms(directory, 1, MEMORY), vms.run

    def with_disk(*words: object) -> None:
        more = ("-drive", f"file={disk},if=virtio,format=raw,readonly=on,cache=unsafe")
        plain(*words, *(more if str(words[0]).startswith("qemu-system") else ()))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vms, "run", with_disk)
        try:
            made.start()
            yield prepared(Host(made), release)
        finally:
            made.stop()


def prepared(host: Host, release: Path) -> Host:
    files = ROOT / "roles/sglang/files"
    headers = checkpoint()
    host.put(
        {
            **{f"opt/gb10/{name}": (files / name).read_text() for name in PROGRAMS},
            "opt/gb10/load_weights.py": (ROOT / "tests/vm/load_weights.py").read_text(),
            "opt/weight_utils.py": (release / "sglang/srt/model_loader/weight_utils.py").read_text(),
            **{f"{name}.header": text for name, text in headers.items()},
            "etc/systemd/system/neighbour.service": unit("/usr/bin/sleep infinity"),
            "etc/systemd/system/mapped.service": load(0, STOP),
            "etc/systemd/system/watched.service": load(THREADS, STOP),
            "etc/systemd/system/alone.service": load(THREADS, 0),
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
    return host


def ledger(host: Host) -> Any:
    return json.loads(host.do("cat /run/gb10-test/nccl/load.json"))


def test_with_mmap_the_load_fits_as_predicted(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        host.do("systemctl start mapped")
        seconds = host.wait("journalctl -u mapped | grep -q 'Load weight end'", LOADED_S)
    told = ledger(host)
    taken = {name: peak["taken_gib"] for name, peak in told["phases"].items()}
    predicted = taken["start"] + FILES * FILE_GIB
    print(f"with mmap: {seconds:.0f} s, {taken}, predicted {predicted:.2f} of {told['total_gib']} GiB")
    host.do("systemctl stop mapped")
    assert predicted == pytest.approx(taken["weights"], rel=0.15)
    assert max(ssh.seconds) < SOON


def test_without_mmap_the_load_is_ended_and_the_host_and_other_services_go_on(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        host.do("systemctl start watched")
        seconds = host.wait("! systemctl is-active watched", LOADED_S)
    said = host.do("journalctl -o cat -u watched; journalctl -o cat -k | grep -i 'out of memory'; true")
    told = ledger(host)
    taken = {name: peak["taken_gib"] for name, peak in told["phases"].items()}
    # min(2 * 8 + 1, 2 * 10) - min(8 + 1, 10) files beside the weights, as the plan says
    predicted = taken["start"] + (FILES + 8) * FILE_GIB
    print(f"without mmap: {seconds:.0f} s, {taken}, predicted {predicted:.2f} of {told['total_gib']} GiB\n{said}")
    assert "the load was ended in its phase weights before the node froze" in said and "Out of memory" not in said
    assert (told["state"], told["phase"]) == ("ended", "weights")
    assert predicted > told["total_gib"]
    assert host.do("systemctl is-active neighbour") == "active"
    assert max(ssh.seconds) < SOON


def test_without_the_watch_the_kernel_has_to_end_the_load(host: Host) -> None:
    with Ssh(host.vm) as ssh:
        host.do("systemctl start alone")
        begun = time.monotonic()
        while time.monotonic() - begun < LOADED_S and SILENT not in ssh.seconds:
            if "yes" not in host.do("systemctl is-active --quiet alone && echo yes", ok=False):
                break
            time.sleep(2)
    print(f"without the watch: {time.monotonic() - begun:.0f} s; {host.console()[-400:]}")
    killed = host.do("journalctl -o cat -k | grep -c 'Out of memory: Killed process'; true", ok=False)
    print(f"the kernel has killed {killed or 'nobody knows how many'} processes")
    assert SILENT in ssh.seconds or killed != "0"
