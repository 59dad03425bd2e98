#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod in which an image judges the command lines of a group, and what it answered.

The program in the pod is ``roles/sglang/files/ask_sglang.py``.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_verdict
short_description: Ask the SGLang of an image whether it accepts the command lines of a group
version_added: 0.1.0
description:
  - Starts one short pod from the group's image on the head's node. It runs the image's own parser and resolver on the
    exact command line of every rank and answers SGLang's questions about the GPU as the planned one would.
  - The pod has neither GPU nor fabric, and the Pod Security level restricted admits it.
  - If the check itself fails, the verdict is V(unknown) with the reason. The module does not fail then, and it does not
    fail for V(refused) either.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.group, gb10.cluster.shared.pod,
  gb10.cluster.shared.slices]
attributes:
  check_mode:
    description: Asks nothing.
    support: full
  idempotent:
    description: The pod is deleted, so nothing changes.
    support: full
options:
  image:
    description: Name of the image with its digest, as M(gb10.cluster.image_pull) returns it.
    type: str
    required: true
  node:
    description: The head's node by its label kubernetes.io/hostname.
    type: str
    required: true
  ranks:
    description: The ranks of the plan with C(rank), C(argv) and C(env).
    type: list
    elements: dict
    required: true
  program:
    description: The text of the program that runs in the pod.
    type: str
    required: true
  files:
    description:
      - Small files of the models on the node as C(ansible.builtin.slurp) returns them, at least C(config.json).
      - If it is empty, SGLang asks the hub for the configuration.
    type: list
    elements: dict
    default: []
  patches:
    description: Patches that run only in the group's pods. With any of them, a refusal counts as V(unknown).
    type: list
    elements: str
    default: []
  plan:
    description: The serving plan. With it, the fact C(gb10_serving_plan) becomes this plan with the verdict on the
      first rank as C(image_verdict).
    type: dict
    default: {}
  gpu:
    description: The GPU of the nodes with C(name), C(capability), C(count), C(memory) in GiB and C(processors).
    type: dict
    required: true
  timeout:
    description: Seconds that the answer may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Ask the image about the command lines
  gb10.cluster.serving_verdict:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    instance: glm
    image: docker.io/lmsysorg/sglang:v0.5.14@sha256:0123
    node: spark1
    ranks: "{{ ansible_facts['gb10_serving_plan'].ranks }}"
    program: "{{ lookup('ansible.builtin.file', role_path ~ '/files/ask_sglang.py') }}"
    gpu: {name: NVIDIA GB10, capability: [12, 1], count: 1, memory: 119, processors: 48}
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: V(accepted), V(refused) or V(unknown); the worst of the ranks' ones.
  returned: always
  type: str
why:
  description: SGLang's own text, or the reason why it could not be asked.
  returned: always
  type: str
release:
  description: The release as the image names it; empty if it was not reached.
  returned: always
  type: str
engine:
  description: Digest of the resolved arguments and of SGLang's variables of the first rank; empty without O(plan), or
    if it is not known.
  returned: always
  type: str
ranks:
  description: Per rank C(verdict), C(message), C(changes), C(overruled), C(resolved), C(engine), C(seconds) and
    C(mebibytes).
  returned: always
  type: list
  elements: dict
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import cut
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    PROGRESS_SPEC,
    Cluster,
    ClusterError,
    Slice,
    poll,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC, GROUP_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import MANAGED_BY, OWNER, VERDICT
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import HOSTNAME, OWNER_SPEC, Owner, brief_pod
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import pod_lines

CONTAINER = "ask"
MARK = "gb10-verdict "
PROGRAM = "sglang.launch_server"
# Linux limits one argument of a program to 128 KiB (MAX_ARG_STRLEN).
LONGEST = 131_000
SHOWN = 12
SHOWN_LENGTH = 600
VERDICTS = ("accepted", "refused", "unknown")
Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the image says about one rank. Values are ``[given, becomes]``; ``overruled`` are the given ones."""

    rank: int
    verdict: str
    message: str = ""
    release: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    overruled: Mapping[str, Any] = field(default_factory=dict)
    resolved: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""
    seconds: float = 0
    mebibytes: float = 0


def server_flags(argv: Sequence[str]) -> list[str]:
    """Return the words after the program's name, all if it is not among them."""
    words = list(argv)
    return words[words.index(PROGRAM) + 1 :] if PROGRAM in words else words


def question(ranks: Iterable[Mapping[str, Any]], files: Iterable[Mapping[str, Any]], gpu: Json, limit: int) -> str:
    """Return the argument of the program; raise ValueError if it is longer than the kernel admits.

    ``files`` are small files of the models with their path in ``source`` and their base64 ``content``.
    """
    texts: dict[str, dict[str, str]] = {}
    for file in files:
        path = PurePosixPath(str(file["source"]))
        text = base64.b64decode(file["content"]).decode("utf-8", "replace")
        texts.setdefault(str(path.parent), {})[path.name] = text
    asked = {
        "gpu": gpu,
        "limit": limit,
        "files": texts,
        "ranks": [
            {"rank": each["rank"], "argv": server_flags(each["argv"]), "env": dict(each.get("env") or {})}
            for each in ranks
        ],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(asked, sort_keys=True).encode(), 9)).decode()
    if len(packed) > LONGEST:
        raise ValueError(f"the command lines and the models' configurations have {len(packed)} bytes, too many")
    return packed


def verdict_pod(instance: str, image: str, node: str, pull_policy: str, program: str, asked: str) -> Json:
    """Return the pod. It has neither GPU nor fabric, and the Pod Security level restricted admits it."""
    text = json.dumps([image, node, program, asked])
    name = hashlib.sha256(text.encode()).hexdigest()[:10]
    container = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["python3", "-c", program, asked],
        "env": [
            # NVIDIA's container runtime gives an image's container all GPUs unless this variable forbids it.
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "HOME", "value": "/tmp"},
        ],
        # The whole import of SGLang took 0.5 GB; a node that serves has little memory left.
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "4", "memory": "3Gi"}},
    }
    meta = {"name": f"{instance}-verdict-{name}", "labels": {VERDICT: name, MANAGED_BY: OWNER}}
    return brief_pod(meta, container, {"nodeSelector": {HOSTNAME: node}})


def why_ended(pod: Mapping[str, Any]) -> str:
    """Return how the program ended (``OOMKilled, exit code 137``); empty if it ended well."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        end = (status.get("state") or {}).get("terminated") or {}
        if code := end.get("exitCode"):
            return f"{end.get('reason') or 'Error'}, exit code {code}"
    return ""


def answers(lines: Iterable[str], ranks: Iterable[int], reason: str) -> list[Answer]:
    """Return an answer per rank. A rank without a complete answer is unknown, because of ``reason``."""
    found: dict[int, Answer] = {}
    for line in lines:
        if line.startswith(MARK):
            answer = _read(line.removeprefix(MARK))
            if answer:
                found[answer.rank] = answer
    return [found.get(rank) or Answer(rank, "unknown", reason) for rank in ranks]


def _read(text: str) -> Answer | None:
    """Return an answer; None for anything that is not a whole one."""
    try:
        said = json.loads(text)
        answer = Answer(**{key: said[key] for key in Answer.__dataclass_fields__ if key in said})
    except (ValueError, TypeError, LookupError):
        return None
    parts = (answer.changes, answer.overruled, answer.resolved)
    right = isinstance(answer.rank, int) and answer.verdict in VERDICTS and isinstance(answer.message, str)
    both = all(isinstance(part, dict) for part in parts) and all(
        isinstance(pair, list) and len(pair) == 2 for part in parts[:2] for pair in part.values()
    )
    return answer if right and both else None


def judged(found: Sequence[Answer], patched: Sequence[str] = ()) -> Json:
    """Return the verdict on the group: ``verdict``, ``why``, ``msg`` and the answers of the ``ranks``.

    A refusal of an image that is still to be patched says nothing about the patched one.
    """
    worst = next((kind for kind in ("refused", "unknown") if any(a.verdict == kind for a in found)), "accepted")
    texts: dict[str, list[int]] = {}
    for answer in found:
        if answer.verdict == worst and answer.message:
            texts.setdefault(answer.message, []).append(answer.rank)
    ranks = {text: f"rank{'s' * (len(own) > 1)} {', '.join(map(str, own))}: " for text, own in texts.items()}
    said = [f"{ranks[text]}{text}" if len(own) < len(found) else text for text, own in texts.items()]
    why = cut("; ".join(said), SHOWN_LENGTH)
    if worst == "refused" and patched:
        worst, why = "unknown", f"{why} (without the patches {', '.join(patched)}, which run only in the group's pods)"
    release = next((answer.release for answer in found if answer.release), "")
    name = f"SGLang {release}".strip()
    shown = {
        "accepted": f"{name} in the image accepts the command lines of all {len(found)} ranks.",
        "refused": f"{name} in the image refuses the command line: {why}",
        "unknown": f"Warning: SGLang in the image could not be asked about the command lines: {why}",
    }
    lines = [shown[worst]]
    if worst == "accepted" and found:
        pairs = found[0].overruled.items()
        lines += [f"  {key}: asked for {cut(str(a), 80)}, will run {cut(str(b), 80)}" for key, (a, b) in pairs][:SHOWN]
    return {
        "verdict": worst,
        "why": why,
        "msg": "\n".join(lines),
        "release": release,
        "ranks": [asdict(answer) for answer in found],
    }


def engine(arguments: str, env: Mapping[str, str]) -> str:
    """Return the digest of a server: of its resolved arguments and SGLang's variables; empty if it is not known."""
    own = {name: value for name, value in env.items() if name.startswith("SGLANG_")}
    text = json.dumps([arguments, own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if arguments else ""


POLL_SECONDS = 1
LOG_LINES = 2000


class Ask:
    """One pod that asks the image; every method raises ClusterError."""

    def __init__(self, cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
        self._cluster, self._namespace, self._pod = cluster, namespace, pod
        self._selector = f"{VERDICT}={pod['metadata']['labels'][VERDICT]}"
        self.seen: dict[str, Any] = {}

    def look(self) -> bool:
        """Return whether the pod has ended; create it if it is not there."""
        self.seen = next(iter(self._cluster.pods(self._namespace, self._selector)), {})
        if not self.seen:
            self._cluster.create_pod(self._namespace, self._pod)
        return (self.seen.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def line(self) -> str:
        """Return what the pod waits for."""
        if not self.seen:
            return "there is no pod"
        return pod_lines([self.seen], self._cluster.events(self._namespace), self._cluster.kubectl)[0]

    def said(self) -> list[str]:
        """Return the lines of the program."""
        return self._cluster.log_end(self._namespace, self._pod["metadata"]["name"], CONTAINER, LOG_LINES)

    def finish(self) -> None:
        """Delete the pod."""
        self._cluster.delete_pod(self._namespace, self._pod["metadata"]["name"])


def answered(ask: Ask, ranks: list[int], part: Slice) -> list[Answer] | None:
    """Return an answer per rank, None if the wait goes on; raise ClusterError."""
    done = poll(ask.look, bool, part.seconds, POLL_SECONDS)
    if not done and not part.last:
        return None
    if done:
        end = why_ended(ask.seen)
        reason = f"the check ended early{f' ({end})' if end else ''}"
        return answers(ask.said(), ranks, reason)
    return answers([], ranks, f"no answer after {part.waited:.0f} s: {ask.line()}")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            **GROUP_SPEC,
            "image": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "ranks": {"type": "list", "elements": "dict", "required": True},
            "program": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "dict", "default": []},
            "patches": {"type": "list", "elements": "str", "default": []},
            "plan": {"type": "dict", "default": {}},
            "gpu": {"type": "dict", "required": True},
            "pull_policy": {"type": "str", "choices": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
            "owner": OWNER_SPEC,
            "timeout": {"type": "int", "default": 300},
            "progress": PROGRESS_SPEC,
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "done": True, "verdict": "unknown", "why": "", "release": ""}
    result["engine"] = ""
    if module.check_mode:
        module.exit_json(msg=f"{options['image']} would be asked about the command lines.", ranks=[], **result)
    ranks = [int(each["rank"]) for each in options["ranks"]]
    part = Slice(options["timeout"], options["progress"])
    try:
        if not options["gpu"]:
            raise ValueError("the GPU of this platform is not known: set sglang_verdict_gpu")
        # The program ends before the wait for it does, so that it can say which ranks it did not reach.
        asked = question(options["ranks"], options["files"], options["gpu"], max(1, options["timeout"] * 9 // 10))
        pod = verdict_pod(
            options["instance"], options["image"], options["node"], options["pull_policy"], options["program"], asked
        )
        pod = Owner(**options["owner"]).on(pod)
        ask = Ask(Cluster(options["kubeconfig"], options["context"]), options["namespace"], pod)
        found = answered(ask, ranks, part)
        if found is None:
            progress = {"waited": part.waited}
            msg = f"asking the image about the command lines for {part.waited:.0f} s: {ask.line()}"
            module.exit_json(msg=msg, **result | {"done": False, "progress": progress, "ranks": []})
        ask.finish()
    except (ClusterError, ValueError) as problem:
        # A check that cannot run says nothing about the command line.
        found = answers([], ranks, str(problem))
    result |= judged(found or [], options["patches"])
    if options["plan"] and result["ranks"]:
        first = result["ranks"][0] | {"verdict": result["verdict"], "message": result["why"]}
        first["engine"] = result["engine"] = engine(first["engine"], options["ranks"][0].get("env") or {})
        result["ansible_facts"] = {"gb10_serving_plan": options["plan"] | {"image_verdict": first}}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
