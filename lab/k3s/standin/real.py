# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the K3s that LAB_K3S names, with the settings that hosts need because they are containers.

K3s reads drop-in files for its containerd. They let containers start without CAP_SYS_RESOURCE, mount the simulated
sysfs in all of them, and do the same for the runtime ``nvidia``.
"""

import os
from collections.abc import Sequence

from . import containerd, images
from .settings import CACHE, load, release


def prepare(role: str, arguments: Sequence[str], binary: str) -> None:
    """Write the drop-in file and the containers' base settings into K3s's data directory."""
    containerd.write_drop_in(load(role, arguments).agent, images.base_spec((binary, "ctr")))


def main(arguments: list[str]) -> None:
    """Replace this process by K3s."""
    binary = str(CACHE / release()["k3s"])
    if arguments[:1] in (["server"], ["agent"]):
        prepare(arguments[0], arguments[1:], binary)
    if arguments[:1] == ["server"]:
        arguments = [*arguments, *(f"--disable={name}" for name in release()["disable"])]
    os.execv(binary, ["k3s", *arguments])
