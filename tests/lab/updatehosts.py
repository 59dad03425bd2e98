# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Publish simulated kernels in the hosts' APT repositories, and read what an update made of them."""

import json
from typing import Any

from labcommand import CHECKOUT
from sitecommand import Site

NODES = ("spark1", "spark2")
HOST = (CHECKOUT / "tests/lab/fixtures/update_host.sh").read_text(encoding="utf-8")
KERNEL = "6.17.0-{}-nvidia"


def publish(site: Site, *packages: str) -> None:
    """Publish packages on both hosts, and read the lists, as the hosts' own timer does."""
    for node in NODES:
        site.lab.shell(node, "\n".join([*(f"lab-publish {words}" for words in packages), "apt-get -qq update"]))


def publish_kernel(site: Site, number: int) -> str:
    """Publish a kernel and the metapackage that brings it; return the kernel."""
    kernel = KERNEL.format(number)
    version = f"linux-image-{kernel} 6.17.0-{number}.1 '' {kernel}"
    publish(site, version, f"linux-nvidia-hwe-24.04 6.17.0.{number}.1 linux-image-{kernel}")
    return kernel


def running(site: Site) -> list[str]:
    return [site.lab.shell(node, "cat /proc/sys/kernel/osrelease") for node in NODES]


def state(site: Site, node: str) -> dict[str, Any]:
    """Return what the update has written on a node; empty if it was never updated."""
    return dict(json.loads(site.lab.shell(node, "cat /var/lib/gb10/update.json 2>/dev/null || echo '{}'")))


def words(text: str) -> str:
    return " ".join(text.split())
