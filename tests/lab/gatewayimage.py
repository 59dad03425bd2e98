# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build an image of SGLang's real Model Gateway from the package index and the lab's own Debian layer.

As a program: gatewayimage.py DIRECTORY, with PYTHONPATH=lab, writes DIRECTORY/gateway.tar.
"""

import platform
import subprocess
import sys
from pathlib import Path

from gb10lab.docker_archive import Image, archive, layer
from sitecommand import CACHE

NAME = "localhost/gb10/sgl-model-gateway:0.3.2"
PACKAGE = "sglang-router==0.3.2"
PLACE = "opt/gateway"
# The Python of the lab's Debian layer.
PYTHON = "3.13"
# The lab's layer lacks these libraries of the C++ compiler; SGLang's own image is based on Ubuntu, which has them.
LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")


def gateway_image(scratch: Path) -> Path:
    """Return the archive of the image; the package is that for the lab's Python, with its dependencies."""
    target = scratch / "packages"
    wheels = [f"manylinux_2_{minor}_{platform.machine()}" for minor in (34, 28, 17)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--target", target,
         "--python-version", PYTHON, *(word for name in wheels for word in ("--platform", name)), PACKAGE],
        check=True,
    )  # fmt: skip
    files = [(f"{PLACE}/{path.relative_to(target)}", path) for path in target.rglob("*") if path.is_file()]
    libraries = Path(f"/usr/lib/{platform.machine()}-linux-gnu")
    files += [(f"{PLACE}/lib/{name}", (libraries / name).resolve()) for name in LIBRARIES]
    base = max(CACHE.glob("python-*.tar"), key=lambda path: path.stat().st_mtime)  # the recipe may have changed
    env = [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"PYTHONPATH=/{PLACE}",
        f"LD_LIBRARY_PATH=/{PLACE}/lib",
        "PYTHONUNBUFFERED=1",
    ]
    image = Image(NAME, [base, layer(scratch / "packages.tar", files)], env=env, origin="the real gateway, packed here")
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    made = scratch / "gateway.tar"
    archive(made, [image], arch)
    return made


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    gateway_image(directory)
