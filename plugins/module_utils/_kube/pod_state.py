# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine what a pod waits for, from its status and events. Private to the collection.

Objects are the API's JSON (camelCase). This module neither calls the API nor reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .._common.findings import cut
from .labels import MEMORY, MEMORY_OUT, TRANSPORT

SHOWN_WARNINGS = 5
SHOWN_LENGTH = 300
# Characters from which on a text that another one contains says the same
_TELLING = 24
_SANDBOX = re.compile(r"\b[0-9a-f]{12,}\b")
# Not --docker-password: every user of the machine can read the arguments of a command.
OF_DOCKER = "--from-file=.dockerconfigjson=$HOME/.docker/config.json"
# {pattern of a Kubernetes warning: its meaning and remedy}
HINTS = (
    (
        r'no runtime for "(?P<name>nvidia[^"]*)" is configured',
        "The container runtime of the node knows no runtime {name}. Run apt-get install nvidia-container-toolkit on"
        " the node. K3s then finds it when it starts: systemctl restart k3s or k3s-agent. For another container runtime"
        " use nvidia-ctk runtime configure, or NVIDIA's GPU operator.",
    ),
    (
        # kube-scheduler, plugin TaintToleration; taints of conditions pass by themselves or have another reason.
        r"untolerated taint(?:\(s\))? \{(?!node\.kubernetes\.io/)(?P<key>[^:}]+)",
        "A node that the pod needs has the taint {key}. For a serving group, add {{key: {key}, operator: Exists}} to"
        " sglang_tolerations.",
    ),
    (
        r"401 Unauthorized|403 Forbidden|(?:pull )?access denied|authorization failed|no basic auth credentials",
        "The registry refuses the node: the image's name is wrong, or it needs a password. After docker login, store"
        " that in the group's namespace with {kubectl} -n NAMESPACE create secret docker-registry NAME "
        f"{OF_DOCKER}, and name that Secret in gb10_image_pull_secrets.",
    ),
    (
        r"ErrImagePull|ImagePullBackOff|[Ff]ailed to pull image",
        "An image can't be pulled. Check that the node reaches the registry and that this has the image, or give the"
        " image to the container runtime of the node (with K3s: the air-gap directory).",
    ),
    (
        # eviction/helpers.go of the kubelet: it evicts for want of memory and of process ids too.
        r"DiskPressure|disk-pressure|(?:low on resource:|to reclaim) (?:ephemeral-storage|inodes)",
        "The node's disk is full. Free space there; preflight shows how much is left.",
    ),
    (
        r"MemoryPressure|memory-pressure|(?:low on resource:|to reclaim) memory",
        "The node's memory is full. End other programs there; preflight shows what holds it.",
    ),
    (
        r"[Nn]ode password rejected",
        "The node was installed again and the cluster knows its old password. Run"
        " {kubectl} -n kube-system delete secret NODE.node-password.k3s.",
    ),
    (
        r"cannot find a network-attachment-definition \((?P<name>[^)]+)\)",
        "The network attachment {name} is gone. Run playbooks/kubernetes.yml, which defines all that the plan has, and"
        " then this playbook again.",
    ),
    (
        r"namespace isolation enabled, .* refers to target namespace (?P<name>[\w-]+)",
        "Multus on that node gives a pod networks of its own namespace only, and of those that its owner allows. Name"
        " networks in the group's namespace, or ask the owner to add {name} to globalNamespaces in Multus'"
        " configuration.",
    ),
    (
        r"[Mm]ultus.*x509: ",
        "Multus on that node has the certificate of another cluster. Delete 00-multus.conf and multus.d in its CNI"
        " directory (with K3s: /var/lib/rancher/k3s/agent/etc/cni/net.d), and run playbooks/kubernetes.yml.",
    ),
    (
        # GetPod in pkg/multus/multus.go of Multus 4.3: requests of 250 ms each for 2.5 s, then one more. Seen where
        # kube-proxy 1.36 had failed in its first sync, which it does not retry (OnServiceSynced in its proxier.go).
        r"Multus: .*error waiting for pod.*deadline exceeded",
        "Multus on that node gets no answer from the API server at its service address. Run on the node: iptables-save"
        " -t nat | grep default/kubernetes. Without a line, kube-proxy has no rule for that address: restart it (with"
        " K3s: k3s or k3s-agent). With lines, the node or the server is too busy: look at the load of both (top). Then"
        " run the playbook again.",
    ),
)


def _newest_first(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), reverse=True)


def _text(event: Mapping[str, Any]) -> str:
    return cut(str(event.get("message") or ""), SHOWN_LENGTH)


def latest_warnings(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the newest Warning events, each text once: ``Pod gpu-plugin-x: FailedCreatePodSandBox: …``."""
    lines: dict[str, str] = {}
    for event in _newest_first(events):
        about, text = event.get("involvedObject") or {}, _text(event)
        # Events of several pods differ in the names of pods and sandboxes.
        key = _SANDBOX.sub("", text.replace(str(about.get("name")), ""))
        lines.setdefault(key, f"{about.get('kind')} {about.get('name')}: {event.get('reason')}: {text}")
    return list(lines.values())[:SHOWN_WARNINGS]


def quoted(warnings: Iterable[str], shown: str) -> list[str]:
    """Return the lines that quote warnings in a message, without those whose text the message shows already."""
    tails = [tail for line in shown.splitlines() for tail in _tails(line) if len(tail) >= _TELLING]
    found = []
    for line in warnings:
        text = line.split(": ", 2)[-1]
        if text not in shown and not any(tail in text for tail in tails):
            found.append(f"Warning event: {line}")
    return found


def _tails(line: str) -> list[str]:
    """Return what stands after each colon of a line: a state ends with the message of the runtime."""
    parts = line.split(": ")
    return [": ".join(parts[at:]) for at in range(1, len(parts))]


def last_event(uid: str, events: Iterable[Mapping[str, Any]]) -> str:
    """Return the newest event of an object (``Pulling: Pulling image …``); empty if there is none.

    A recreated pod keeps its name, so only the uid distinguishes its events from those of its predecessor.
    """
    own = _newest_first(e for e in events if e.get("involvedObject", {}).get("uid") == uid)
    return f"{own[0].get('reason')}: {_text(own[0])}" if own else ""


def tells_more(event: str, state: str) -> bool:
    """Tell whether an event (``Failed: Failed to pull image …``) says something that a pod's state does not."""
    said, known = event.partition(": ")[2], state.partition(": ")[2]
    return bool(event) and said not in state and not (known and known in said)


def hints(warnings: Iterable[str], program: str) -> list[str]:
    """Return the remedies for the warnings whose cause is known, each once; ``program`` begins their commands."""
    found = []
    for text in warnings:
        for pattern, hint in HINTS:
            if match := re.search(pattern, text):
                found.append(hint.format(**match.groupdict(), kubectl=program))
    return list(dict.fromkeys(found))


# Reasons of a waiting container that do not resolve without a change.
_FINAL = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "InvalidImageName", "RunContainerError"}
)
# What a registry answers by itself does not change while a playbook waits: no right, no such image, another protocol.
# Names that do not resolve, refused connections and 429 (too many requests) do.
_REFUSED = re.compile(
    r"\b40[13] [UF]|access denied|authorization failed|no basic auth|: not found|manifest unknown|x509: |TLS handshake$"
)
# The kubelet retries every few seconds; so many failures are not a race at the start.
_SANDBOX_FAILURES = 3
# A busy server or node does not answer in time, also several times, but later: seen at a load of 30 on two cores.
_BUSY = ("deadline exceeded", "i/o timeout")
_BUSY_FAILURES = 20
# Pods of one state that a line names
_NAMED = 4
# The scheduler's words if no node has the labels that the pod asks for.
_NO_SUCH_NODE = re.compile(r"0/(\d+) nodes are available: \1 node\(s\) didn't match Pod's node affinity/selector")


def crash(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the end of a container that is not running because it crashed; empty if it did not."""
    state = container.get("state", {})
    if (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff" or state.get("terminated"):
        return state.get("terminated") or container.get("lastState", {}).get("terminated") or {"exitCode": "?"}
    return {}


def refused_image(pod: Mapping[str, Any]) -> bool:
    """Return whether a registry refused the image of a pod twice, for a reason that does not pass by itself."""
    containers = pod.get("status", {}).get("containerStatuses", [])
    return any(trouble(pod, container, (), "")[1] for container in containers)


def trouble(
    pod: Mapping[str, Any], container: Mapping[str, Any], events: Iterable[Mapping[str, Any]], program: str
) -> tuple[str, bool]:
    """Return what keeps a pod from becoming ready (empty if nothing is known), and whether waiting cannot help.

    ``program`` begins the commands of remedies.
    """
    # A recreated pod keeps its name, so only the uid distinguishes its events from those of its predecessor.
    uid = pod["metadata"].get("uid")
    warnings = [e for e in events if e.get("type") == "Warning" and e.get("involvedObject", {}).get("uid") == uid]
    waiting = container.get("state", {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if last := crash(container):
        # One crash does not end the wait; group_status counts the crashes.
        return f"crashed with exit code {last.get('exitCode', '?')}", False
    if reason in _FINAL:
        return f"{reason}: {waiting.get('message', '')}", True
    if reason in {"ErrImagePull", "ImagePullBackOff"}:
        message = str(waiting.get("message", ""))
        return f"{reason}: {message}", reason == "ImagePullBackOff" and bool(_REFUSED.search(message))
    sandbox = [e for e in warnings if e.get("reason") in {"FailedCreatePodSandBox", "NoNetworkFound"}]
    if sandbox and pod.get("status", {}).get("phase") == "Pending":
        count, message = sum(int(e.get("count") or 1) for e in sandbox), str(sandbox[-1].get("message", ""))
        busy = any(words in message for words in _BUSY)
        return message, count >= (_BUSY_FAILURES if busy else _SANDBOX_FAILURES)
    return _unmet(pod, program)


def _unmet(pod: Mapping[str, Any], program: str) -> tuple[str, bool]:
    conditions = pod.get("status", {}).get("conditions") or []
    false = {one.get("type"): one for one in conditions if one.get("status") == "False"}
    if unscheduled := false.get("PodScheduled"):
        message = str(unscheduled.get("message", ""))
        node = (pod["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname")
        if node and _NO_SUCH_NODE.match(message):
            why = f"node {node} is not in the cluster. Add it with playbooks/kubernetes.yml, or serve on other nodes"
            return f"not scheduled: {why} (serving_plan_nodes)", False
        return f"not scheduled: {message}", False
    memory = false.get(MEMORY, {})
    if memory.get("reason") == MEMORY_OUT:
        return f"memory: {memory.get('message', '')}", False
    if unproven := false.get(TRANSPORT):
        # A rank that connected over another transport keeps it until it is restarted.
        wrong = unproven.get("reason") == "WrongTransport" and bool(pod["spec"].get("readinessGates"))
        return f"transport: {unproven.get('message', '')}", wrong
    if false.get("Ready", {}).get("reason") == "ReadinessGatesNotReady":
        place = f"-n {pod['metadata'].get('namespace', 'NAMESPACE')} logs {pod['metadata']['name']}"
        return (
            "transport: the container transport has written no condition, so the pod cannot become ready. It needs the "
            f"API server, which pods of every node must reach. Look at {program} {place} -c transport",
            False,
        )
    return "", False


def ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready and is not being deleted."""
    conditions = pod.get("status", {}).get("conditions") or []
    leaving = bool(pod["metadata"].get("deletionTimestamp"))
    return not leaving and any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def stuck_container(pod: Mapping[str, Any], first: str = "") -> Mapping[str, Any]:
    """Return the status of the container that does not run; a fault of the container ``first`` takes precedence."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    own: Mapping[str, Any] = next((c for c in statuses if c.get("name") == first), statuses[0])
    return next((c for c in (own, *statuses) if not c.get("state", {}).get("running")), own)


def pod_lines(pods: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], program: str) -> list[str]:
    """Return what pods that are not ready wait for; those that wait for the same stand together, up to four by name."""
    listed = list(events)
    found: dict[str, tuple[list[str], str]] = {}
    for pod in pods:
        name, place = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName") or "no node yet"
        text = _state_of(pod, listed, program)
        key = text.replace(name, "").replace(place, "")
        found.setdefault(key, ([], text))[0].append(f"{name} on {place}")
    lines = []
    for whos, text in found.values():
        more = f" and {len(whos) - _NAMED} more" if len(whos) > _NAMED else ""
        lines.append(f"pod{'s' if len(whos) > 1 else ''} {', '.join(whos[:_NAMED])}{more}: {text}")
    return lines


def _state_of(pod: Mapping[str, Any], listed: list[Mapping[str, Any]], program: str) -> str:
    """Return phase, the container's reason, and the newest event of a pod."""
    container = stuck_container(pod)
    waiting = container.get("state", {}).get("waiting") or {}
    reason = trouble(pod, container, listed, program)[0] or waiting.get("reason", "")
    event = last_event(str(pod["metadata"].get("uid", "")), listed)
    more = f" (last event {event})" if tells_more(event, reason) else ""
    return ", ".join(filter(None, [pod.get("status", {}).get("phase", "Unknown"), reason])) + more


def daemons_behind(daemon_set: Mapping[str, Any]) -> str:
    """Return how far a DaemonSet is from running its newest pod on every node; empty if it does."""
    status = daemon_set.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    if status.get("observedGeneration", 0) < daemon_set["metadata"].get("generation", 0):
        return "its controller has not seen the newest version"
    done = min(status.get(key, 0) for key in ("numberReady", "updatedNumberScheduled"))
    return "" if wanted and done >= wanted else f"{done} of {wanted} nodes run the newest pod"
