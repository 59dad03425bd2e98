# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the name of a lab and the paths of its files."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from .machines import Host
from .shell import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = Path("/run/gb10-lab")
CONTROLLER = "10.99.0.1"
MARKER = ".gb10-lab"


@dataclass(frozen=True)
class Lab:
    """Paths and names of one lab. The name comes from the state directory's path, so two checkouts differ."""

    state: Path
    cache: Path

    @classmethod
    def here(cls) -> Lab:
        """Return the lab of this checkout, or of $GB10_LAB_STATE and $GB10_CACHE."""
        state = Path(os.environ.get("GB10_LAB_STATE") or CHECKOUT / ".lab")
        cache = Path(os.environ.get("GB10_CACHE") or Path.home() / ".cache" / "gb10-lab")
        return cls(state.absolute().resolve(), cache.absolute().resolve())

    @classmethod
    def every(cls) -> list[Lab]:
        """Return all labs on this machine, also those of other checkouts and incomplete ones."""
        here = cls.here()
        return [cls(Path(path.read_text().strip()), here.cache) for path in sorted(RUN.glob("gb10-*/state"))]

    @property
    def name(self) -> str:
        """Name of the lab's namespace, cgroup and directory in /run."""
        return "gb10-" + hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def run(self) -> Path:
        """Directory of run-time files; in /run, which a reboot of the machine clears."""
        return RUN / self.name

    @property
    def lock(self) -> Path:
        """Lock file: one `up` or `down` of a lab at a time."""
        return RUN / f"{self.name}.lock"

    def netns(self, host: Host) -> str:
        """Name of a host's network namespace."""
        return f"{self.name}-{host.name}"

    def host_dir(self, host: Host) -> Path:
        """Directory of one host's own files."""
        return self.state / "hosts" / host.name

    @property
    def key(self) -> Path:
        """Private ssh key of the lab's user."""
        return self.state / "ssh" / "id_ed25519"

    @property
    def become_password(self) -> Path:
        """File with the sudo password of the hosts' user."""
        return self.state / "become-password"

    @property
    def known_hosts(self) -> Path:
        """File with the hosts' public key for every address of the lab."""
        return self.state / "ssh" / "known_hosts"

    def claim(self) -> None:
        """Claim the state directory. Raise LabError if it has files of another program."""
        if self.state.exists() and any(self.state.iterdir()) and not (self.state / MARKER).exists():
            raise LabError(
                f"{self.state} is not empty and not a lab's state directory; nothing was changed. "
                "Set GB10_LAB_STATE to a directory of its own."
            )
        self.state.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)
        (self.state / MARKER).touch()
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / "state").write_text(f"{self.state}\n")

    def describe(self) -> dict[str, object] | None:
        """Return what a completed `up` wrote: ``{nodes, layout, hosts, …}``; None if no lab is up."""
        try:
            return dict(json.loads((self.run / "lab.json").read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def finish(self, description: dict[str, object]) -> None:
        """Write what ``describe`` reads. From then on the lab is up."""
        part = self.run / "lab.json.part"
        part.write_text(json.dumps(description))
        part.rename(self.run / "lab.json")

    def environment(self) -> dict[str, str]:
        """Return the environment for commands that work with this lab."""
        return {
            "GB10_LAB_STATE": str(self.state),
            "GB10_LAB_NAME": self.name,
            "GB10_CACHE": str(self.cache),
            # all labs use the same addresses, so their ssh masters must not be shared
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.run / "cp"),
            # sudo's prompt came later than Ansible's 10 s while three servers with etcd started on two busy cores
            "ANSIBLE_TIMEOUT": "60",
            # In the inventory, these would be templates of each host, which Ansible resolves again for each task: with
            # their lookups they took a tenth of the CPU of a second site.
            "ANSIBLE_PRIVATE_KEY_FILE": str(self.key),
            "ANSIBLE_SSH_COMMON_ARGS": (
                f"-o UserKnownHostsFile={self.known_hosts} -o GlobalKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
            ),
        }
