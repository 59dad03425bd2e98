# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run K3s's other commands."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import images
from .datastore import restore, snapshot_program
from .settings import KUBECONFIG, Settings, StandInError, component, load, release


def version() -> int:
    """`k3s --version`."""
    print(f"k3s version {release()['version']} (gb10.cluster's K3s stand-in: real components, not K3s's binary)")
    return 0


def kubectl(arguments: Sequence[str]) -> int:
    """`k3s kubectl …`."""
    os.environ.setdefault("KUBECONFIG", str(KUBECONFIG))
    os.execv(component("kubectl"), ["kubectl", *arguments])


def ctr(arguments: Sequence[str]) -> int:
    """`k3s ctr …`."""
    os.environ.setdefault("CONTAINERD_NAMESPACE", "k8s.io")
    os.environ.setdefault("CONTAINERD_ADDRESS", images.SOCKET)
    os.execv(images.program("ctr"), ["ctr", *arguments])


def token(arguments: Sequence[str]) -> int:
    """`k3s token`: only report that it is not simulated."""
    raise StandInError(
        f"`k3s token {' '.join(arguments)}` is not simulated: the tokens are in server/token and server/agent-token"
    )


def secrets_encrypt(arguments: Sequence[str]) -> int:
    """`k3s secrets-encrypt status`."""
    if list(arguments[:1]) != ["status"]:
        raise StandInError("of `k3s secrets-encrypt` only `status` is simulated")
    enabled = (load("server", arguments[1:]).server / "cred" / "encryption-config.json").exists()
    print(f"Encryption Status: {'Enabled' if enabled else 'Disabled'}")
    if enabled:
        print("Current Rotation Stage: start\nServer Encryption Hashes: All hashes match\n")
        print("Active  Key Type  Name\n------  --------  ----\n *      AES-CBC   aescbckey")
    return 0


def etcd_snapshot(arguments: Sequence[str]) -> int:
    """`k3s etcd-snapshot save|ls|delete`."""
    words = [word for word in arguments if not word.startswith("-")]
    action = words[0] if words and words[0] in {"save", "ls", "list", "delete"} else "save"
    rest = [word for word in arguments if word != action]
    names = [] if action != "delete" else [word for word in rest if not word.startswith("-")]
    settings = load("server", [word for word in rest if word not in names])
    if not settings.embedded_etcd:
        raise StandInError("etcd datastore disabled")
    directory = Path(settings.text("etcd-snapshot-dir") or settings.text("dir") or settings.server / "db" / "snapshots")
    if action == "save":
        return _save(settings, directory)
    if action == "delete":
        for name in names:
            (directory / Path(name).name).unlink()
        return 0
    print("Name Location Size Created")
    for path in sorted(directory.glob("*")) if directory.is_dir() else []:
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(path.stat().st_mtime))
        print(f"{path.name} file://{path} {path.stat().st_size} {created}")
    return 0


def _save(settings: Settings, directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = settings.text("etcd-snapshot-name") or settings.text("name", "on-demand")
    path = directory / f"{name}-{socket.gethostname()}-{int(time.time())}"
    argv = [*snapshot_program(settings), "-save", str(path)]
    if subprocess.run(argv, check=False).returncode:
        raise StandInError("the snapshot failed, see above; is k3s running?")
    print(f"Snapshot {path.name} saved.", file=sys.stderr)
    return 0


def cluster_reset(settings: Settings) -> int:
    """`k3s server --cluster-reset --cluster-reset-restore-path=FILE`: a datastore of one member from a snapshot."""
    snapshot = settings.text("cluster-reset-restore-path")
    if not snapshot:
        raise StandInError("--cluster-reset is simulated only with --cluster-reset-restore-path=FILE")
    restore(settings, snapshot)
    print("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now.", file=sys.stderr)
    return 0
