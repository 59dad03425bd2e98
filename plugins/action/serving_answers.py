# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a running group questions with known answers. It is an action, because a module cannot show progress."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action.serving_chat import CONTAINER, find_head
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._pod import chat
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import again
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.answers import (
    Asking,
    Question,
    answers_screen,
    arguments,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import failed
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.proof import Progress

# What the program of a round prints at most: its texts are limited, and so is the memory for them here.
MOST = 1 << 21
# Seconds beyond the limit of an answer that a command in a pod may take
SLACK_S = 60


class ActionModule(ControllerAction):
    """Runs the questions inside the head's pod, as action serving_chat does."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was asked and came, or a failure with one screen; skipped in check mode or without questions."""
        plan, args = options["plan"], arguments((options["plan"].get("ranks") or [{"argv": []}])[0]["argv"])
        if self._task.check_mode or options["questions"] == "off" or "is_embedding" in args:
            return {"changed": False, "skipped": True, "msg": "No question is sent."}
        if not plan.get("ranks"):
            raise AnsibleActionFail(
                "there is no serving plan to verify. Run role serving_plan before, as playbook verify does"
            )
        limit, instance = options["timeout"], plan["instance"]
        progress = Progress(tell, time.monotonic, time.sleep)
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            head = find_head(cluster, options["namespace"], instance)

            def ask(questions: Sequence[Question]) -> Sequence[Mapping[str, Any]]:
                progress.begin(f"Ask the model: {questions[0].kind}")
                program = ["python3", "-c", Path(chat.__file__).read_text(encoding="utf-8"), "round"]
                sent = [str(plan["service"]["port"]), str(limit), json.dumps([each.sent() for each in questions])]
                begun = time.monotonic()

                def waiting() -> None:
                    progress.alive()
                    if time.monotonic() - begun > limit + SLACK_S:
                        raise ClusterError(f"the command in the head's pod did not end {SLACK_S} s after its limit")

                name = head["metadata"]["name"]
                return answers(cluster.stream(options["namespace"], name, CONTAINER, [*program, *sent], waiting))

            asking = Asking(args, options["questions"] == "full", ask)
            wrong = asking.run()
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        if wrong:
            screen = replace(answers_screen(plan, asking, wrong, limit), command=again("site"))
            details = {
                "msg": screen.title,
                "right": asking.right,
                "wrong": [{"asked": each.question.sent(), "came": each.answer, "why": each.why} for each in wrong],
            }
            return {"changed": False} | failed(
                screen, f"answers-{instance}", details, task_vars, self._templar.template
            )
        right, weak = len(asking.right), asking.weak
        done = f"{right} of {right + weak} answers are right, the longest to {asking.longest} tokens."
        done += f" The model answers {weak} of these questions wrongly alone too." if weak else ""
        tell(done)
        return {"changed": False, "msg": done, "answers": asking.right}


def answers(pieces: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the answers that the program in the pod printed; raise ClusterError if it printed something else."""
    text = b""
    for piece in pieces:
        text += piece
        if len(text) > MOST:
            raise ClusterError(f"the command in the pod printed more than {MOST >> 20} MiB")
    try:
        return [dict(each) for each in json.loads(text)]
    except (TypeError, ValueError):
        raise ClusterError("the command in the pod ended before it printed the answers") from None
