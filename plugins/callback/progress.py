# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print one line per stage: which of how many, the time so far, and how long the rest took in the previous run."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Print the stage, the elapsed time and the expected rest of a run, and the task that takes long
version_added: 0.1.0
description:
  - Prints a line when a playbook of a run begins, such as V(stage 3 of 7, fabric, after 0:21, about 1:10 left).
    With C(--tags) only the playbooks count that have one of these tags.
  - The expected rest comes from the previous successful run of the same playbook with the same inventory, tags, limit
    and C(--check). The first run has none.
  - Prints a line every 30 seconds while a task has no result. The waits of this collection print their own lines.
  - At the end, prints the three stages that took longest.
  - Prints and keeps nothing unless standard output is a terminal, so logs of CI stay as they are.
author: The gb10.cluster authors (@gb10)
requirements:
  - C(callbacks_enabled = gb10.cluster.progress) in ansible.cfg, or the same name in C(ANSIBLE_CALLBACKS_ENABLED).
options:
  show:
    description: When to print. V(auto) prints on a terminal only.
    type: str
    choices: [auto, always, never]
    default: auto
    env:
      - name: GB10_PROGRESS
    ini:
      - section: callback_gb10_progress
        key: show
  file:
    description: Where the durations of the last runs are kept.
    type: path
    default: ~/.cache/gb10-cluster/progress.json
    env:
      - name: GB10_PROGRESS_FILE
    ini:
      - section: callback_gb10_progress
        key: file
"""

import json
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import explain
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import tags_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import COLLECTION, read_yaml

# The plays that check the inventory and plan before a stage, unless an earlier one has planned, belong to no stage, and
# neither does the play of the command ansible, which is in no file.
NO_STAGE = {"", "check", "planned"}
# What Ansible does differently with other values, and so in another time. Extra variables may be secret.
OPTIONS = ("inventory", "tags", "skip_tags", "subset", "check", "start_at_task")
# Stands beside the starts of the stages.
END = "end of the run"
# Longest time without a line
QUIET_SECONDS = 30
# The actions and the modules that run in time slices (meta/runtime.yml) print while they wait.
ACTIONS = COLLECTION / "plugins" / "action"
ROUTES = read_yaml(COLLECTION / "meta" / "runtime.yml")["plugin_routing"]["modules"]
SLICED = {name for name, route in ROUTES.items() if route.get("action_plugin") == "gb10.cluster.pods_wait"}


def clock(seconds: float) -> str:
    """Return minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class CallbackModule(CallbackBase):
    """Follows the stages of one run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gb10.cluster.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._run = ""
        self._stages: list[str] = []
        self._started: dict[str, float] = {}
        self._task, self._task_begun, self._heard = "", 0.0, 0.0
        self._over = Event()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Find the stages: the playbooks that have plays with the wanted tags, in their order."""
        self._begun, self._started = time.monotonic(), {}
        names = dict.fromkeys(stage(play) for play in playbook.get_plays() if wanted(play))
        self._stages = [name for name in names if name not in NO_STAGE]
        self._run = json.dumps([playbook._file_name, *(context.CLIARGS.get(name) for name in OPTIONS)])

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Print the stage if this is its first play."""
        name = stage(play)
        self._task = ""
        if name in self._started or name not in self._stages or not self._shown():
            return
        if not self._started:
            self._over.clear()
            # Ansible's own thread for results displays beside the main one, too; display and fork share a lock.
            Thread(target=self._watch, daemon=True).start()
        passed = self._started[name] = time.monotonic() - self._begun
        before = self._earlier().get(self._run, {})
        left = f", about {clock(max(0, before[END] - before[name]))} left" if {name, END} <= before.keys() else ""
        self._print(f"stage {self._stages.index(name) + 1} of {len(self._stages)}, {name}, after {clock(passed)}{left}")

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Follow a task; the actions of this collection print while they wait."""
        self._task = "" if speaks(task.resolved_action or task.action) else task.get_name().strip()
        self._task_begun = self._heard = time.monotonic()

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Ansible has just printed a line."""
        self._heard = time.monotonic()

    def v2_runner_retry(self, result: Any) -> None:
        self._heard = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(1):
            self._beat()

    def _beat(self) -> None:
        """Name the task if nothing was printed for a while."""
        now = time.monotonic()
        if self._task and now - self._heard >= QUIET_SECONDS:
            self._heard = now
            self._print(f"{self._task}: {clock(now - self._task_begun)} so far")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the longest stages, and keep the times of a run without failures."""
        self._over.set()
        if not self._started or not self._shown():
            return
        end = time.monotonic() - self._begun
        starts = [*self._started.values(), end]
        took = {name: starts[number + 1] - start for number, (name, start) in enumerate(self._started.items())}
        longest = [f"{name} {clock(took[name])}" for name in sorted(took, key=lambda name: -took[name])[:3]]
        self._print(f"ended after {clock(end)}; longest: {', '.join(longest)}")
        if not stats.failures and not stats.dark:
            self._keep({**self._started, END: end})

    def _keep(self, times: dict[str, float]) -> None:
        path = Path(self._option("file"))
        kept = self._earlier() | {self._run: times}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept), encoding="utf-8")
        except OSError as error:
            self._display.warning(f"progress: {explain(error)}")

    def _earlier(self) -> dict[str, dict[str, float]]:
        try:
            kept = json.loads(Path(self._option("file")).read_text(encoding="utf-8"))
            return {run: {name: int(at) for name, at in times.items()} for run, times in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError):
            return {}

    def _shown(self) -> bool:
        show = self._option("show")
        return show == "always" or (show == "auto" and sys.stdout.isatty())

    def _option(self, name: str) -> str:
        return str(self.get_option(name))  # type: ignore[no-untyped-call]

    def _print(self, text: str) -> None:
        self._display.display(f"==> {text}", color="bright cyan")


def stage(play: Any) -> str:
    """Return the name of the playbook that has the play."""
    return Path(play.get_path().rpartition(":")[0]).stem


def speaks(action: str) -> bool:
    """Return whether an action of this collection, or one to which meta/runtime.yml leads a module, runs the task."""
    collection, _dot, name = action.rpartition(".")
    return collection == "gb10.cluster" and (name in SLICED or (ACTIONS / f"{name}.py").is_file())


def wanted(play: Any) -> bool:
    """Return whether a play has one of the tags of this run, beside the tasks that run with every tag."""
    only, skipped = (set(context.CLIARGS.get(name) or ()) for name in ("tags", "skip_tags"))
    return not skipped.intersection(play.tags) and ("all" in only or not only.isdisjoint(tags_of(play)))
