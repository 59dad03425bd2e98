# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print which process the real earlyoom would end, and which one next, until only those are left that it has to avoid.

The arguments are the command line of the running earlyoom. It is started again with --dryrun and limits that make it
act at once, among processes with the names and the oom_score_adj of a node that serves (no process has an
oom_score_adj below 0, because that needs a privilege; in life, kubelet and containerd have -999). Start this as the
only process of a PID namespace with its own /proc.
"""

from __future__ import annotations

import re
import subprocess
import sys

# Name, oom_score_adj, MiB. A container without a memory request has 999, a process that is no pod's 0.
SERVER = [("sglang::schedul", 999, 160), ("sglang::detoken", 999, 80)]
HELPERS = [("python3", 999, 20)]
OTHERS = [("cron", 0, 0), ("nginx", 999, 0)]
AVOIDED = [("sshd", 0, 40), ("kubelet", 0, 40), ("k3s-server", 0, 40), ("containerd", 0, 40), ("containerd-shim", 0, 0)]
PROCESS = """
import sys, time
open("/proc/self/comm", "w").write(sys.argv[1])
open("/proc/self/oom_score_adj", "w").write(sys.argv[2])
used = b"x" * (int(sys.argv[3]) << 20)
print("ready", flush=True)
time.sleep(600)
"""


def choice(earlyoom: list[str]) -> tuple[str, int]:
    """Return the name and the number of the process that earlyoom would end."""
    with subprocess.Popen(earlyoom, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout
        said = []
        for line in running.stdout:
            said.append(line)
            # Its self-test at the start sends signal 0.
            if found := re.search(r'sending SIG\w+ to process (\d+) uid \d+ "(.*?)"', line):
                running.kill()
                return found[2], int(found[1])
    raise SystemExit("earlyoom chose nothing:\n" + "".join(said))


def main() -> None:
    given = sys.argv[1:]
    limits = given.index("-m") + 1
    earlyoom = [*given[:limits], "99,98", *given[limits + 1 :], "--dryrun"]
    # It would lower its own oom_score_adj.
    earlyoom.remove("-p")
    alive = {}
    for name, adjusted, size in [*AVOIDED, *HELPERS, *OTHERS, *SERVER]:
        words = [sys.executable, "-c", PROCESS, name, str(adjusted), str(size)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout and process.stdout.readline() == "ready\n", name
        alive[process.pid] = process
    order = []
    for _victim in [*HELPERS, *OTHERS, *SERVER]:
        name, pid = choice(earlyoom)
        order.append(name)
        ended = alive.pop(pid)
        ended.kill()
        ended.wait()
    for process in alive.values():
        process.kill()
    print(" ".join(order))


if __name__ == "__main__":
    main()
