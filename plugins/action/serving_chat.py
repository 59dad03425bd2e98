# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a running group one question. This is an action, because a module cannot show an answer while it arrives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE, RANK
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import ready
from ansible_collections.gb10.cluster.plugins.module_utils._pod import chat
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import head_values

CONTAINER = "sglang"


class ActionModule(ControllerAction):
    """Runs the question inside the head's pod, so that it needs neither an address nor a forwarded port."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer and its figures after showing it. Raise AnsibleActionFail if there is no answer."""
        namespace, instance = options["namespace"], options["instance"]
        if self._task.check_mode:
            return {"changed": False, "skipped": True, "msg": "A question is not sent in check mode."}
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            head = find_head(cluster, namespace, instance)
            port = head_values(head["spec"]).get("--port", "30000")
            words = ["python3", "-u", "-c", Path(chat.__file__).read_text(encoding="utf-8")]
            command = [*words, port, str(options["tokens"]), options["question"]]
            text, said = streamed(cluster.stream(namespace, head["metadata"]["name"], CONTAINER, command), _show)
        except ClusterError as error:
            raise AnsibleActionFail(str(error)) from None
        if "error" in said:
            raise AnsibleActionFail(
                f"group {instance} did not answer: {said['error']}. See its log: playbooks/logs.yml "
                f"-e instance={instance} [serving.chat.failed]"
            )
        _show(f"\n\n{figures(said)}\n")
        return {"changed": False, "answer": text, "msg": figures(said), **said}


def find_head(cluster: Cluster, namespace: str, instance: str) -> dict[str, Any]:
    """Return the pod of rank 0; raise ClusterError, or AnsibleActionFail if it is not ready."""
    for pod in cluster.pods(namespace, f"{INSTANCE}={instance},{RANK}=0"):
        if ready(pod):
            return pod
    raise AnsibleActionFail(
        f"group {instance} has no head that is ready, so nothing can be asked. See what it waits for: "
        f"playbooks/serve_status.yml -e instance={instance} [serving.head.not_ready]"
    )


def streamed(pieces: Iterable[bytes], show: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """Show what comes before the record separator; return it and the figures after it."""
    answer, rest, ended = "", "", False
    for piece in pieces:
        text = piece.decode(errors="replace")
        if not ended:
            text, mark, more = text.partition(chat.END)
            answer += text
            if text:
                show(text)
            ended, text = bool(mark), more
        if ended:
            rest += text
    try:
        return answer, dict(json.loads(rest))
    except ValueError:
        return answer, {"error": "the connection to the pod ended before the answer"}


def figures(said: Mapping[str, Any]) -> str:
    """Return tokens, time to first token and tokens per second of one answer.

    The rate is over the seconds after the first token: prefill is not generation.
    """
    rest = said["seconds"] - said["first_token_seconds"]
    rate = f", then {(said['tokens'] - 1) / rest:.1f} tokens/s" if rest > 0 and said["tokens"] > 1 else ""
    return f"{said['tokens']} tokens, the first after {said['first_token_seconds']:.2f} s{rate}"


def _show(text: str) -> None:
    tell(text, newline=False)
