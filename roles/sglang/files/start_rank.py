# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare the container of a rank, then start its server. Runs in the pod; standard library only.

NCCL gets a new directory for its log files at every start of the container. Only NCCL writes there, so a prompt that
the server prints cannot pass for a statement of NCCL, and no file of an earlier process can pass for a current one.

A patch hook is a Python file that changes the installed packages and verifies the change. It prints one line and exits
with 0 if the patch was applied or was not needed. Any other status stops the start: no server is better than an
unpatched one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path


def fresh_directory(base: Path) -> Path:
    """Delete what earlier starts of this container left in ``base``, and return a new directory; raise OSError."""
    for old in base.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    made = base / str(time.time_ns())
    made.mkdir()
    # The sidecar, which reads the files, runs as another user.
    made.chmod(0o755)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl-logs", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--patch", action="append", default=[], type=Path, metavar="FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = [word for number, word in enumerate(options.command) if number or word != "--"]
    try:
        # NCCL replaces %h with the host name and %p with the process number: each process has its own file.
        os.environ["NCCL_DEBUG_FILE"] = f"{fresh_directory(options.nccl_logs)}/%h.%p"
    except OSError as error:
        sys.exit(f"no new directory for NCCL's logs can be made, so the server is not started: {error}")
    for patch in options.patch:
        print(f"patch {patch.stem}: running", flush=True)
        done = subprocess.run([sys.executable, str(patch)], check=False)
        if done.returncode:
            sys.exit(f"patch {patch.stem} failed with exit code {done.returncode}; the server is not started")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
