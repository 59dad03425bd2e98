# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fabric_plan.py"


def test_planning_and_rendering_grow_at_most_linearly() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert [row["hosts"] for row in answer["sizes"]] == [4, 64, 256]
    assert [row["vfs"] for row in answer["sizes"]] == [64, 1024, 4096]
    assert answer["linear"] is True
