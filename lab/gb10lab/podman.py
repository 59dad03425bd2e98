# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run podman with its own store, configuration and run-time files, so that the user's podman is not changed."""

import resource
import subprocess
from pathlib import Path

from .lab import Lab
from .shell import command


class Podman:
    """Call it with the arguments of a podman command line.

    Containers live in the lab's state directory; ``images`` is a read-only store of images beside it.
    Pass ``graph_root`` to work on another store.
    """

    def __init__(self, lab: Lab, *, graph_root: Path | None = None, images: Path | None = None) -> None:
        self._directory = lab.run / ("podman" if graph_root is None else "podman-images")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._write_containers_conf(graph_root or lab.state / "podman", lab.name)
        self._write_storage_conf(graph_root or lab.state / "podman", images)
        self.env = {
            "CONTAINERS_CONF": str(self._directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self._directory / "storage.conf"),
            "TMPDIR": "/var/tmp",
        }

    def _write_containers_conf(self, graph_root: Path, parent: str) -> None:
        limits = {"nofile": (resource.RLIMIT_NOFILE, 1048576), "nproc": (resource.RLIMIT_NPROC, 32768)}
        # podman's defaults are above the machine's limits, which only CAP_SYS_RESOURCE may raise
        hard = {name: _limit(resource.getrlimit(number)[1], most) for name, (number, most) in limits.items()}
        (self._directory / "containers.conf").write_text(
            f"""[containers]
default_ulimits = [{", ".join(f'"{name}={value}:{value}"' for name, value in hard.items())}]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
tmp_dir = "{self._directory}/tmp"
static_dir = "{graph_root}/libpod"
volume_path = "{graph_root}/volumes"
"""
        )

    def _write_storage_conf(self, graph_root: Path, images: Path | None) -> None:
        extra = f'additionalimagestores = ["{images}"]' if images else ""
        (self._directory / "storage.conf").write_text(
            f"""[storage]
driver = "overlay"
graphroot = "{graph_root}"
runroot = "{self._directory}/run"
[storage.options]
{extra}
"""
        )

    def __call__(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return command(["podman", *arguments], env=self.env, check=check, timeout=timeout)


def _limit(value: int, most: int) -> int:
    return most if value == resource.RLIM_INFINITY else min(value, most)
