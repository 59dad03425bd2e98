# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a server's datastore as K3s does: SQLite behind kine for one server, embedded etcd for several."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from . import tokens
from .children import Children, log
from .pki import write_private
from .settings import Settings, StandInError, component, extra, node_programs


def etcd_client_flags(settings: Settings) -> list[str]:
    """Return the options with which a client connects to this server's etcd."""
    tls = settings.server / "tls" / "etcd"
    return ["-cert", f"{tls}/client.crt", "-key", f"{tls}/client.key", "-cacert", f"{tls}/server-ca.crt"]


def snapshot_program(settings: Settings) -> list[str]:
    """Return the program that saves snapshots and adds members, with this server's etcd as its target."""
    return [component("etcd-snapshot"), "-endpoint", "https://127.0.0.1:2379", *etcd_client_flags(settings)]


def _bootstrap_key(settings: Settings) -> str:
    """Return the key of the authorities, which contains a hash of the token. K3s also encrypts their value with it."""
    return f"/bootstrap/{hashlib.sha256(tokens.password(settings).encode()).hexdigest()[:12]}"


def restore(settings: Settings, snapshot: str) -> None:
    """Replace the datastore by one of a single member, and the authorities by those of the snapshot."""
    datastore = settings.server / "db" / "etcd"
    made = datastore.with_name("etcd-restored")
    shutil.rmtree(made, ignore_errors=True)
    name, peer = settings.node_name, Datastore(settings).peer
    argv = [component("etcd-snapshot"), "-restore", snapshot, "-name", name, "-add", peer, "-directory", str(made),
            "-show", _bootstrap_key(settings)]  # fmt: skip
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise StandInError(f"{snapshot} could not be restored, see above; the datastore is as it was")
    for path, text in json.loads(done.stdout).items():
        write_private(settings.server / path, text)
    if datastore.exists():
        # K3s also keeps the old datastore under this name
        datastore.rename(datastore.with_name(f"etcd-old-{int(time.time())}"))
    made.rename(datastore)


def reconcile(server: Path, files: Mapping[str, str]) -> None:
    """Raise StandInError, in K3s's words, if files of another cluster are on the disk of a server that joins one.

    K3s also compares times (ReconcileBootstrapData), and replaces files that are older than the datastore. After a
    restore those of the other servers are newer.
    """
    others = [str(server / name) for name, text in files.items() if (server / name).exists()
              and (server / name).read_text() != text]  # fmt: skip
    if others:
        raise StandInError(
            f"starting kubernetes: preparing server: failed to bootstrap cluster data: {', '.join(others)} newer than "
            "datastore and could cause a cluster outage. Remove the file(s) from disk and restart to be recreated "
            "from datastore."
        )


class Datastore:
    """The datastore of one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._directory = settings.server / "db"
        self._socket = settings.server / "kine.sock"
        self._members = ""

    @property
    def joined(self) -> bool:
        """True if this server's etcd belongs to a cluster already."""
        return (self._directory / "etcd" / "member").exists()

    @property
    def used(self) -> bool:
        """True if this server stored objects before."""
        return self.joined or (self._directory / "state.db").exists()

    @property
    def peer(self) -> str:
        """The address at which other servers' etcd reaches this one's."""
        return f"https://{self._settings.node_ip}:2380"

    def join(self, members: str) -> None:
        """Start as a new member of these (`name=peer,…`)."""
        self._members = members

    def add(self, name: str, peer: str) -> str:
        """Accept another server's etcd as a member; return all members."""
        argv = [*snapshot_program(self._settings), "-name", name, "-add", peer]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StandInError(done.stderr.strip())
        return done.stdout.strip()

    def start(self, children: Children) -> None:
        """Start the program that stores the objects."""
        database = self._directory / "state.db"
        if not self._settings.embedded_etcd:
            children.start("kine", [f"{node_programs()}/kine", f"-database={database}", f"-socket={self._socket}"])
            return
        children.start("etcd", self._etcd())
        if database.exists() and not self._settings.text("server"):
            self._migrate(database)

    def keep(self, files: Mapping[str, str]) -> None:
        """Store the authorities with the objects, so that a snapshot restores both."""
        if self._settings.embedded_etcd:
            argv = [*snapshot_program(self._settings), "-put", _bootstrap_key(self._settings)]
            if subprocess.run(argv, input=json.dumps(files), text=True, check=False).returncode:
                raise StandInError("the authorities could not be stored in etcd, see above")

    def api_flags(self) -> list[str]:
        """Return the API server's options for this datastore."""
        if not self._settings.embedded_etcd:
            return [f"--etcd-servers=unix://{self._socket}"]
        tls = self._settings.server / "tls" / "etcd"
        return ["--etcd-servers=https://127.0.0.1:2379", f"--etcd-cafile={tls}/server-ca.crt",
                f"--etcd-certfile={tls}/client.crt", f"--etcd-keyfile={tls}/client.key"]  # fmt: skip

    def election_flags(self) -> list[str]:
        """Return the controllers' options: the only server needs no election, so it does not wait for an old lease."""
        return [] if self._settings.embedded_etcd else ["--leader-elect=false"]

    def _migrate(self, database: Path) -> None:
        """Copy the objects of a server that was started without cluster-init before."""
        log("migrating content from sqlite to etcd")
        target = ["-copy-to", "https://127.0.0.1:2379", *etcd_client_flags(self._settings)]
        argv = [f"{node_programs()}/kine", f"-database={database}", *target]
        if subprocess.run(argv, check=False).returncode:
            raise StandInError(f"{database} could not be copied to etcd, see above")
        database.rename(f"{database}.migrated")

    def _etcd(self) -> list[str]:
        tls, here, name = self._settings.server / "tls" / "etcd", self._settings.node_ip, self._settings.node_name
        clients = f"https://{here}:2379"
        return [
            component("etcd"), f"--name={name}", f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls=https://127.0.0.1:2379,{clients}", f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={self.peer}", f"--initial-advertise-peer-urls={self.peer}",
            f"--initial-cluster={self._members or f'{name}={self.peer}'}",
            f"--initial-cluster-state={'existing' if self._members else 'new'}",
            f"--cert-file={tls}/server-client.crt", f"--key-file={tls}/server-client.key",
            f"--trusted-ca-file={tls}/server-ca.crt", "--client-cert-auth=true",
            f"--peer-cert-file={tls}/peer-server-client.crt", f"--peer-key-file={tls}/peer-server-client.key",
            f"--peer-trusted-ca-file={tls}/server-ca.crt", "--peer-client-cert-auth=true",
            # K3s's own; with etcd's defaults a busy machine loses its leader, and then the leases of the controllers
            "--heartbeat-interval=500", "--election-timeout=5000",
            # without fsync slow disks do not delay the lab, which need not survive a power failure
            "--log-level=warn", "--unsafe-no-fsync=true", *extra(self._settings, "etcd-arg"),
        ]  # fmt: skip
