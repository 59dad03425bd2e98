# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""labctl as the tests call it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

LABCTL = Path(__file__).resolve().parents[2] / "lab" / "labctl"


@dataclass(frozen=True)
class LabCommand:
    """labctl for one state directory."""

    state: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GB10_LAB_STATE": str(self.state)}

    def __call__(self, *words: str, check: bool = True) -> str:
        """Run labctl; its standard output. Fails with what it said on standard error."""
        done = subprocess.run(
            [LABCTL, *words], env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert not check or done.returncode == 0, f"labctl {' '.join(words)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def up(self, nodes: int = 1) -> None:
        self("up", "--nodes", str(nodes), "--no-kubernetes")

    def shell(self, host: str, script: str) -> str:
        """Run a script of bash on a host; it fails with its first failing command."""
        return self("exec", host, "--", "bash", "-euo", "pipefail", "-c", script).strip()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start labctl and don't wait for it."""
        return subprocess.Popen([LABCTL, *words], env=self.environment, stderr=subprocess.DEVNULL)
