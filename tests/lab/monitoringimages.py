# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build images of the monitoring stack and of the Prometheus operator.

Prometheus, Alertmanager and node-exporter are Debian's. kube-state-metrics and the operator are built from Go modules.
DCGM's exporter is simulated, because the lab has no GPU.
"""

import importlib.machinery
import importlib.util
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gb10lab import deps
from gb10lab.docker_archive import Image, archive, layer
from labcommand import CHECKOUT
from sitecommand import CACHE

# The suite of the lab's Debian layer. Prometheus of the suite before it cannot find pods through the Kubernetes API.
SUITE = "trixie"
# What the images need of Debian's packages. Grafana is no Debian package.
PACKAGES = {
    "prometheus": ["usr/bin/prometheus"],
    "prometheus-alertmanager": [
        "usr/bin/prometheus-alertmanager",
        "usr/share/prometheus/alertmanager/default.tmpl",
        "usr/share/prometheus/alertmanager/email.tmpl",
    ],
    "prometheus-node-exporter": ["usr/bin/prometheus-node-exporter"],
}
# What no package and no module has.
SIMULATED = {"dcgm-exporter": CHECKOUT / "lab" / "dcgm" / "dcgm-exporter"}
# The package of each part of the stack.
PARTS = {name.removeprefix("prometheus-"): name for name in (*PACKAGES, "kube-state-metrics", *SIMULATED)}
OPERATOR = {
    f"quay.io/prometheus-operator/{name}:v0.85.0": program
    for name, program in (("prometheus-operator", "operator"), ("prometheus-config-reloader",) * 2)
}
PACKED = "a program of Debian or of its project's Go module, packed here"
IMAGES = {part: f"localhost/gb10/{part}:lab" for part in PARTS}


def built() -> Path:
    """Return the directory of what is built from Go modules: bin/ and operator.yaml."""
    program = CHECKOUT / "lab" / "kubernetes" / "build"
    subprocess.run([program, "--node-only", "--monitoring"], check=True, timeout=900)
    loader = importlib.machinery.SourceFileLoader("lab_build", str(program))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    build = importlib.util.module_from_spec(spec)
    loader.exec_module(build)
    return Path(build.monitoring_directory())


def debian_files() -> Path:
    """Return the directory with the files of the packages, in their places; they are fetched once."""
    final = CACHE / f"monitoring-{SUITE}"
    if not final.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            words = ["mmdebstrap", "--variant=extract", "--mode=root", "--quiet", f"--keyring={deps.KEYRING}"]
            source = f"deb {deps.mirror()} {SUITE} main"
            root, kept = Path(scratch) / "root", Path(scratch) / "kept"
            subprocess.run([*words, f"--include={','.join(PACKAGES)}", SUITE, root, source], check=True)
            for name in (name for names in PACKAGES.values() for name in names):
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, kept / name)
            kept.rename(final)
    return final


def _image(scratch: Path, name: str, program: str, files: Sequence[tuple[str, Path]], origin: str = PACKED) -> Image:
    """Return an image of the lab's Debian with Python, with the files in it, that runs the program."""
    base = max(CACHE.glob("python-*.tar"), key=lambda path: path.stat().st_mtime)  # the recipe may have changed
    return Image(
        name,
        [base, layer(scratch / f"{Path(program).name}.tar", files)],
        [program],
        env=["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        user="65534:65534",
        origin=origin,
    )


def monitoring_images(scratch: Path) -> Path:
    """Return the archive of all images. Those of the operator have the names that its manifests give them."""
    debian, programs = debian_files(), built() / "bin"
    images = []
    for part, package in PARTS.items():
        files = [(name, debian / name) for name in PACKAGES.get(package, ())]
        files = files or [(f"usr/bin/{package}", SIMULATED.get(package, programs / package))]
        origin = "simulated: the lab has no GPU" if package in SIMULATED else PACKED
        images.append(_image(scratch, IMAGES[part], f"/usr/bin/{package}", files, origin))
    for name, program in OPERATOR.items():
        images.append(_image(scratch, name, f"/bin/{program}", [(f"usr/bin/{program}", programs / program)]))
    made = scratch / "monitoring.tar"
    archive(made, images, {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()])
    return made
