# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one setting of the machine that a lab needs; the last lab puts it back."""

from __future__ import annotations

from pathlib import Path

_SETTING = Path("/proc/sys/fs/inotify/max_user_instances")
_BEFORE = Path("/run/gb10-lab/inotify-before")
_NEEDED = 8192  # measured: every systemd and containerd takes some dozens, the default of 128 is gone with four hosts


def raise_inotify() -> None:
    """Allow enough inotify instances; remember what it was."""
    now = int(_SETTING.read_text())
    if now < _NEEDED:
        _BEFORE.write_text(f"{now}\n")
        _SETTING.write_text(f"{_NEEDED}\n")


def restore_inotify() -> None:
    """Put the setting back unless another lab still runs."""
    others = [path for path in _BEFORE.parent.glob("gb10-*") if path.is_dir()]
    if _BEFORE.exists() and not others:
        _SETTING.write_text(_BEFORE.read_text())
        _BEFORE.unlink()
