# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change kernel settings of the machine for a lab; the last lab restores them."""

import json
from pathlib import Path

_PROC = Path("/proc/sys")
_BEFORE = Path("/run/gb10-lab/settings-before.json")
_INSTANCES = "fs/inotify/max_user_instances"
# measured: every systemd and containerd needs dozens of instances; four hosts use up the default of 128
_NEEDED = 8192
# settings of the whole machine that every kubelet and kube-proxy writes
_KUBERNETES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "fs/inotify/max_user_watches",
    "net/netfilter/nf_conntrack_max",
)


def prepare() -> None:
    """Save the settings and allow enough inotify instances."""
    if not _BEFORE.exists():
        found = {name: (_PROC / name).read_text() for name in (_INSTANCES, *_KUBERNETES) if (_PROC / name).exists()}
        part = _BEFORE.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(_BEFORE)
    if int((_PROC / _INSTANCES).read_text()) < _NEEDED:
        (_PROC / _INSTANCES).write_text(f"{_NEEDED}\n")


def restore() -> None:
    """Restore the settings unless another lab still runs."""
    others = [path for path in _BEFORE.parent.glob("gb10-*") if path.is_dir()]
    if not _BEFORE.exists() or others:
        return
    for name, value in json.loads(_BEFORE.read_text()).items():
        path = _PROC / name
        if path.exists() and path.read_text() != value:
            path.write_text(value)
    _BEFORE.unlink()
