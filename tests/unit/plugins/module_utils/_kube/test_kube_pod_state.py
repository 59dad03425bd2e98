# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which events are quoted, and the remedies for the known ones."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import pod_state

NVIDIA = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: "
    'no runtime for "nvidia" is configured'
)


def event(text: str, stamp: str, name: str = "gb10-gpu-plugin-x") -> dict[str, Any]:
    about = {"kind": "Pod", "name": name}
    return {"involvedObject": about, "reason": "FailedCreatePodSandBox", "message": text, "lastTimestamp": stamp}


def test_the_newest_warnings_each_once() -> None:
    found = [event(f"text {n}", f"2026-11-22T09:00:{n:02}Z") for n in range(9)] + [
        event("text 8", "2026-11-22T09:00:01Z")
    ]
    shown = pod_state.latest_warnings(found)
    assert shown[0] == "Pod gb10-gpu-plugin-x: FailedCreatePodSandBox: text 8"
    assert len(shown) == len(set(shown)) == pod_state.SHOWN_WARNINGS


def test_a_warning_is_quoted_unless_its_whole_text_is_shown() -> None:
    line = "Pod x: FailedMount: volume a: busy"
    assert pod_state.quoted([line], "It is busy.") == [f"Warning event: {line}"]
    assert pod_state.quoted([line], "volume a: busy") == []
    # A short end says too little to be the same.
    assert pod_state.quoted([line], "state: busy") == [f"Warning event: {line}"]
    long = f"{'the same ' * 3}cause"
    assert pod_state.quoted([f"Pod x: FailedMount: {long} again"], f"state: reason: {long}") == []


def test_a_missing_runtime_is_named_with_its_remedy() -> None:
    (hint,) = pod_state.hints(pod_state.latest_warnings([event(NVIDIA, ""), event(NVIDIA, "", "other")]), "kubectl")
    assert "knows no runtime nvidia" in hint
    assert "systemctl restart k3s" in hint
    assert "nvidia-ctk runtime configure" in hint
    assert pod_state.hints(["Pod x: BackOff: back-off restarting failed container"], "kubectl") == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("Evicted: The node was low on resource: ephemeral-storage. Threshold quantity: 5Gi", "disk is full"),
        ("EvictionThresholdMet: Attempting to reclaim inodes", "disk is full"),
        ("Evicted: The node was low on resource: memory. Threshold quantity: 100Mi", "memory is full"),
        ("FailedScheduling: had untolerated taint {node.kubernetes.io/memory-pressure: }", "memory is full"),
        ("FailedCreatePodSandBox: " + NVIDIA.replace("nvidia", "kata"), ""),
        ("TaintManagerEviction: Cancelling deletion of Pod x/y", ""),
    ],
)
def test_a_hint_names_the_cause_that_the_event_has(seen: str, said: str) -> None:
    found = pod_state.hints([f"Pod x: {seen}"], "kubectl")
    assert (said in " ".join(found), len(found)) == (True, bool(said))


def test_an_api_server_that_multus_does_not_reach_is_named_with_both_causes() -> None:
    where = 'plugin type="multus" failed (add): Multus: [gb10-serving/gb10-probe-spark4/28f3]: error waiting for pod: '
    seen = f'{where}Get "https://10.43.0.1:443/api/v1/namespaces/x/pods/y?timeout=1m0s": context deadline exceeded'
    (hint,) = pod_state.hints([f"Pod y: FailedCreatePodSandBox: {seen}"], "kubectl")
    assert "restart it (with K3s: k3s or k3s-agent)" in hint
    assert "look at the load of both" in hint
    assert pod_state.hints([f"Pod y: FailedCreatePodSandBox: {where}pods is forbidden"], "kubectl") == []


def test_a_taint_is_named_with_the_variable_that_tolerates_it() -> None:
    seen = "Pod x: FailedScheduling: 0/3 nodes are available: 1 node(s) had untolerated taint"
    for words in (" {nvidia.com/gpu: present}", "(s) {nvidia.com/gpu: }"):
        (hint,) = pod_state.hints([f"{seen}{words}, 2 node(s) didn't match Pod's node affinity/selector."], "kubectl")
        assert "add {key: nvidia.com/gpu, operator: Exists} to sglang_tolerations" in hint
    assert pod_state.hints([f"{seen} {{node.kubernetes.io/not-ready: }}"], "kubectl") == []


def test_the_last_event_is_that_of_the_same_object() -> None:
    old, new, other = event("old", "2026-11-22T09:00:01Z"), event("new", "2026-11-22T09:00:02Z"), event("x", "2027")
    old["involvedObject"]["uid"] = new["involvedObject"]["uid"] = "u"
    assert pod_state.last_event("u", [old, new, other]) == "FailedCreatePodSandBox: new"
    assert pod_state.last_event("v", [old]) == ""


def test_a_network_of_another_namespace_that_multus_keeps_apart() -> None:
    said = "namespace isolation enabled, annotation violates permission, pod is in namespace a but refers to target"
    (hint,) = pod_state.hints([f"Pod y: FailedCreatePodSandBox: {said} namespace rdma-2)"], "kubectl")
    assert "add rdma-2 to globalNamespaces" in hint


def test_a_long_event_keeps_its_end_which_has_the_cause() -> None:
    cause = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    event = {"message": f"Failed to create pod sandbox: {'plugin ' * 60}{cause}", "reason": "FailedCreatePodSandBox"}
    (line,) = pod_state.latest_warnings([event])
    assert line.endswith(cause)
    assert len(line) < 360
