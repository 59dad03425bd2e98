# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the configuration of containerd: K3s's own file, and the drop-in file with what the lab's hosts need."""

from pathlib import Path

from . import pki
from .images import PAUSE, SOCKET
from .settings import Settings, release

_NVIDIA_RUNTIMES = (
    Path("/usr/local/nvidia/toolkit/nvidia-container-runtime"),
    Path("/usr/bin/nvidia-container-runtime"),
)
# Like K3s's template for containerd 2.
_CONFIG = """# Written by the lab's K3s stand-in, {version}
version = 3
imports = ["{directory}/config-v3.toml.d/*.toml"]
root = "{agent}/containerd"
state = "/run/k3s/containerd"

[grpc]
  address = "{socket}"

[plugins.'io.containerd.internal.v1.opt']
  path = "{agent}/containerd"

[plugins.'io.containerd.cri.v1.runtime']
  device_ownership_from_security_context = {owned}
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{agent}/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "{default}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  use_local_image_pull = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "{directory}/certs.d"
"""
_TABLE = "\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{}]\n"
# Lowering an oom_score_adj needs CAP_SYS_RESOURCE, which a lab may lack.
_DROP_IN = """version = 3
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
"""


def write_config(settings: Settings, plugins: Path) -> Path:
    """Write K3s's own file and return its path; ``plugins`` is the directory of the CNI plugins."""
    directory = _directory(settings.agent)
    text = _CONFIG.format(
        version=release()["version"], agent=settings.agent, directory=directory, socket=SOCKET, pause=PAUSE,
        plugins=plugins, default=settings.text("default-runtime", "runc"),
        owned=str(settings.flag("nonroot-devices")).lower(),
    )  # fmt: skip
    for name, program in _runtimes().items():
        text += _TABLE.format(name) + '  runtime_type = "io.containerd.runc.v2"\n'
        if program:
            text += _TABLE.format(f"{name}.options") + f'  BinaryName = "{program}"\n'
    path = directory / "config.toml"
    pki.write_private(path, text, 0o644)
    return path


def write_drop_in(agent: Path, spec: str) -> None:
    """Write the lab's drop-in file: every container starts from ``spec``, whatever its runtime is."""
    base = _directory(agent) / "base-spec.json"
    pki.write_private(base, spec, 0o644)
    tables = (_TABLE.format(name) + f'  base_runtime_spec = "{base}"\n' for name in _runtimes())
    pki.write_private(_directory(agent) / "config-v3.toml.d" / "gb10-lab.toml", _DROP_IN + "".join(tables), 0o644)


def _directory(agent: Path) -> Path:
    return agent / "etc" / "containerd"


def _runtimes() -> dict[str, str]:
    """Return each runtime with its program. As with K3s, NVIDIA's is there only if its program is."""
    nvidia = next((str(path) for path in _NVIDIA_RUNTIMES if path.exists()), "")
    return {"runc": "", **({"nvidia": nvidia} if nvidia else {})}
