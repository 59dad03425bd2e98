# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the name of a lab and the paths of its files."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from .shell import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = Path("/run/gb10-lab")
CONTROLLER = "10.99.0.1"
# index of a rail -> its PF, the PF's RDMA device, its PCI address (the two halves of one ConnectX-7 cage on GB10)
RAILS = (
    {"pf": "enp1s0f0np0", "rdma": "rocep1s0f0", "pci": "0000:01:00.0", "vf": "enp1s0f0v", "vf_rdma": "rocep1s0f0v"},
    {
        "pf": "enP2p1s0f0np0",
        "rdma": "roceP2p1s0f0",
        "pci": "0002:01:00.0",
        "vf": "enP2p1s0f0v",
        "vf_rdma": "roceP2p1s0f0v",
    },
)
MAX_NODES = 64
USER = "gb10"
# "spark": a machine as delivered, NetworkManager renders netplan's files; "kind": systemd-networkd renders them
HOST_KINDS = ("spark", "kind")
MARKER = ".gb10-lab"


@dataclass(frozen=True)
class Host:
    """One host of the lab; ``number`` is 0 for the control host and N for sparkN."""

    name: str
    number: int

    @property
    def address(self) -> str:
        """Management address: 10.99.0.10 for control, 10.99.0.(10+N) for sparkN."""
        return f"10.99.0.{10 + self.number}"

    @property
    def is_node(self) -> bool:
        """True for a host with PFs and a GPU."""
        return self.number > 0


def hosts_of(nodes: int) -> list[Host]:
    """The control host and ``nodes`` sparks. Raises LabError outside 1…MAX_NODES."""
    if not 1 <= nodes <= MAX_NODES:
        raise LabError(f"--nodes {nodes}: a lab has 1 to {MAX_NODES} nodes")
    return [Host("control", 0), *(Host(f"spark{number}", number) for number in range(1, nodes + 1))]


@dataclass(frozen=True)
class Lab:
    """Paths and names of one lab. The name comes from the state directory's path, so two checkouts differ."""

    state: Path
    cache: Path

    @classmethod
    def here(cls) -> Lab:
        """The lab of this checkout, or of $GB10_LAB_STATE and $GB10_CACHE."""
        state = Path(os.environ.get("GB10_LAB_STATE") or CHECKOUT / ".lab")
        cache = Path(os.environ.get("GB10_CACHE") or Path.home() / ".cache" / "gb10-lab")
        return cls(state.absolute().resolve(), cache.absolute().resolve())

    @classmethod
    def every(cls) -> list[Lab]:
        """All labs on this machine, also those of other checkouts and those that were never finished."""
        here = cls.here()
        return [cls(Path(path.read_text().strip()), here.cache) for path in sorted(RUN.glob("gb10-*/state"))]

    @property
    def name(self) -> str:
        """Name of the lab's namespace, cgroup and directory in /run."""
        return "gb10-" + hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def run(self) -> Path:
        """Run-time files; in /run, so that the machine's reboot forgets them."""
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
        """The hosts' public key, under every address of the lab."""
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
        """Return what a completed `up` wrote: ``{nodes, kubernetes}``; None when no lab is up."""
        try:
            return dict(json.loads((self.run / "lab.json").read_text()))
        except (FileNotFoundError, ValueError):
            return None

    def finish(self, description: dict[str, object]) -> None:
        """Write what ``describe`` reads: from here on the lab is up."""
        part = self.run / "lab.json.part"
        part.write_text(json.dumps(description))
        part.rename(self.run / "lab.json")

    def environment(self) -> dict[str, str]:
        """Environment for commands that work with this lab."""
        return {
            "GB10_LAB_STATE": str(self.state),
            "GB10_LAB_NAME": self.name,
            "GB10_CACHE": str(self.cache),
            # all labs use the same addresses, so their ssh masters must not be shared
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.run / "cp"),
        }
