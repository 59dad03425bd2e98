# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quote a cluster's events and explain the known ones. Private to the collection; does not call the API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .._common.findings import cut

SHOWN_WARNINGS = 5
SHOWN_LENGTH = 300
# Characters from which on a text that another one contains says the same
_TELLING = 24
_SANDBOX = re.compile(r"\b[0-9a-f]{12,}\b")
# {pattern of a Kubernetes warning: its meaning and remedy}
HINTS = (
    (
        r'no runtime for "(?P<name>[^"]+)" is configured',
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
        r"ErrImagePull|ImagePullBackOff|[Ff]ailed to pull image",
        "An image can't be pulled. Check that the node reaches the registry, or give the image to its container runtime"
        " (with K3s: the air-gap directory).",
    ),
    (r"DiskPressure|[Ee]vict", "The node's disk is full. Free space there; preflight shows how much is left."),
    (
        r"[Nn]ode password rejected",
        "The node was installed again and the cluster knows its old password. Run"
        " kubectl -n kube-system delete secret NODE.node-password.k3s.",
    ),
    (
        r"cannot find a network-attachment-definition \((?P<name>[^)]+)\)",
        "The network attachment {name} is gone. Run playbooks/kubernetes.yml, which defines all that the plan has, and"
        " then this playbook again.",
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


def hints(warnings: Iterable[str]) -> list[str]:
    """Return the remedies for the warnings whose cause is known, each once."""
    found = []
    for text in warnings:
        for pattern, hint in HINTS:
            if match := re.search(pattern, text):
                found.append(hint.format(**match.groupdict()))
    return list(dict.fromkeys(found))
