# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import the air-gap archives, and configure containers' base settings and the mirrors of registries.yaml."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .children import log
from .settings import StandInError, node_programs

PAUSE = "docker.io/rancher/mirrored-pause:3.10.2"
SOCKET = "/run/k3s/containerd/containerd.sock"
# Directories that all containers see: the simulated sysfs, and the one in which programs record their RDMA traffic.
_MOUNTS = {"/run/gb10-lab/sys": "ro", "/run/gb10-lab/rdma-traffic": "rw"}
_UNPACKERS = {".zst": "zstd", ".gz": "gzip", ".tgz": "gzip", ".tzst": "zstd"}


def program(name: str) -> str:
    """Return the path of containerd, or of its client ctr."""
    return str(node_programs() / name)


def ctr(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run containerd's client ctr."""
    return subprocess.run([*_client(), *arguments], capture_output=True, text=True, check=False)


def _client() -> list[str]:
    return [program("ctr"), f"--address={SOCKET}", "--namespace=k8s.io"]


def import_all(agent: Path) -> None:
    """Import every archive of agent/images that is new or changed.

    K3s also pins each image. That is not needed here, because the kubelet is configured to delete no images.
    """
    stamps = agent / "containerd" / "imported.json"
    known: dict[str, list[float]] = json.loads(stamps.read_text()) if stamps.exists() else {}
    found = {}
    for path in sorted((agent / "images").iterdir()):
        if not path.name.endswith((".tar", *_UNPACKERS)):
            continue
        stamp = [path.stat().st_mtime, path.stat().st_size]
        if known.get(path.name) != stamp:
            log(f"importing {path.name}")
            _import(path)
        found[path.name] = stamp
    stamps.write_text(json.dumps(found))


def _import(path: Path) -> None:
    importing = [*_client(), "images", "import", "-"]
    unpacker = _UNPACKERS.get(path.suffix)
    with path.open("rb") as archive:
        if unpacker is None:
            done = subprocess.run(importing, stdin=archive, capture_output=True, check=False)
        else:
            with subprocess.Popen([unpacker, "-dcq"], stdin=archive, stdout=subprocess.PIPE) as unpacked:
                done = subprocess.run(importing, stdin=unpacked.stdout, capture_output=True, check=False)
    if done.returncode:
        raise StandInError(f"{path} could not be imported: {done.stderr.decode(errors='replace').strip()}")


def base_spec(client: Sequence[str]) -> str:
    """Return the base OCI spec of all containers: containerd's default, plus the directories in ``_MOUNTS``."""
    spec: dict[str, Any] = json.loads(
        subprocess.run([*client, "oci", "spec"], capture_output=True, text=True, check=True).stdout
    )
    for path, mode in _MOUNTS.items():
        if Path(path).is_dir():
            spec["mounts"].append({"destination": path, "type": "bind", "source": path, "options": ["rbind", mode]})
    return json.dumps(spec)


def write_mirrors(agent: Path, registries: Mapping[str, Any]) -> None:
    """Turn the mirrors of registries.yaml into containerd's hosts.toml files."""
    for name, mirror in (registries.get("mirrors") or {}).items():
        directory = agent / "etc" / "containerd" / "certs.d" / ("_default" if name == "*" else name)
        directory.mkdir(parents=True, exist_ok=True)
        hosts = "".join(
            f'[host."{url}"]\n  capabilities = ["pull", "resolve"]\n' for url in (mirror or {}).get("endpoint") or []
        )
        server = "" if name == "*" else f'server = "https://{name}"\n'
        (directory / "hosts.toml").write_text(server + hosts)
