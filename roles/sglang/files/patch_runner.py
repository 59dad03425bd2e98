# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run patch hooks in the given order, then start the server. Runs in the pod; standard library only.

A hook is a Python file that changes the installed packages and verifies the change. It prints one line and exits with 0
if the patch was applied or was not needed. Any other status stops the start: no server is better than an unpatched one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patch", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = [word for number, word in enumerate(options.command) if number or word != "--"]
    for patch in options.patch:
        print(f"patch {patch.stem}: running", flush=True)
        done = subprocess.run([sys.executable, str(patch)], check=False)
        if done.returncode:
            sys.exit(f"patch {patch.stem} failed with exit code {done.returncode}; the server is not started")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
