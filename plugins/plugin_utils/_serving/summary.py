# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Summarize a running group, and compare its settings with those that it was given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import kubectl
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, RANK, REVISION, number

from .._fabric.attachments import NETWORK_STATUS, read_networks
from .._sglang.argv import parse_flags
from .._sglang.catalogue import History
from .._sglang.check import clean_argv
from .model import Plan, flags
from .pods import NETWORKS

# Summarize a running group: nodes, VFs, addresses, transport and speed.
#
# All values were read back (pod status, GID table, NCCL's log); a value that was not read appears as "-".


def _rank(template: Mapping[str, Any], revision: str) -> Iterator[str]:
    container, *beside = template["spec"]["containers"]
    yield f"rank {(template['metadata'].get('labels') or {}).get(RANK)}:"
    yield f"  node: {(template['spec'].get('nodeSelector') or {}).get('kubernetes.io/hostname', '')}"
    yield f"  image: {container['image']}"
    yield "  command:"
    yield from (f"    {line}" for line in flags(container["command"]))
    yield "  env:"
    for variable in container.get("env") or []:
        source = "from a Secret" if "valueFrom" in variable else variable.get("value", "")
        yield f"    {variable['name']}={source}"
    yield "  networks:"
    for network in read_networks((template["metadata"].get("annotations") or {}).get(NETWORKS)):
        addresses = network.get("ips")
        shown = ", ".join(map(str, addresses)) if isinstance(addresses, list) else ""
        yield f"    {network.get('interface')}: {network.get('name')} {shown}"
    for kind, amounts in sorted(container.get("resources", {}).items()):
        # The API returns quantities as text.
        if isinstance(amounts, dict):
            yield f"  {kind}: " + ", ".join(f"{name}={value}" for name, value in sorted(amounts.items()))
    for other in beside:
        yield f"  {other['name']}:"
        yield from (f"    {line}" for line in flags(other["command"]))
    yield f"  revision: {revision}"


def revisions(objects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the revisions of a group's workloads by their names, without those of its fallback."""
    return {
        item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(REVISION, "")
        for item in objects
        if item["kind"] == "StatefulSet" and not _waits(item)
    }


def _waits(item: Mapping[str, Any]) -> bool:
    """Tell whether a workload is the fallback's: it has no pods that would have to be replaced."""
    return FALLBACK in (item["metadata"].get("labels") or {})


def outdated(live: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a running group differs from the wanted one in its workloads or its revision."""
    running = revisions(live)
    return bool(running) and running != revisions(wanted)


def describe(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the ranks among ``objects`` as text, rank 0 first; an empty string when there are none."""
    found = [
        (item["spec"]["template"], (item["metadata"].get("annotations") or {}).get(REVISION, ""))
        for item in objects
        if item["kind"] == "StatefulSet" and RANK in (item["metadata"].get("labels") or {}) and not _waits(item)
    ]
    found.sort(key=lambda rank: number((rank[0]["metadata"].get("labels") or {}).get(RANK)) or 0)
    return "".join(f"{line}\n" for template, revision in found for line in _rank(template, revision))


HEADINGS = ("rank", "node", "pod", "rail", "VF", "pod interface", "address", "MTU", "GID", "transport")
UNKNOWN = "-"
_CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}


def _transport(rank: int, verdict: Mapping[str, Any]) -> str:
    """Return what NCCL logged for a rank, with the number of channels per device: ``NET/IB 0:4 1:4``."""
    for entry in verdict.get("ranks") or []:
        if entry.get("rank") == rank:
            channels = [
                f"NET/{net} " + " ".join(f"{device}:{count}" for device, count in sorted(devices.items()))
                for net, devices in sorted((entry.get("channels") or {}).items())
            ]
            return ", ".join(channels) or str(entry.get("verdict") or UNKNOWN)
    return UNKNOWN


def gids(devices: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[tuple[str, str, str], str]:
    """Return the index of every RoCE v2 GID by node, RDMA device and address."""
    return {
        (node, str(device["name"]), str(gid["ipv4"])): str(gid["index"])
        for node, found in devices.items()
        for device in found
        for port in device["ports"]
        for gid in port["gids"]
        if gid.get("ipv4") and gid["type"] == "RoCE v2"
    }


def rows(
    plan: Plan,
    pods: Sequence[Mapping[str, Any]],
    found: Mapping[tuple[str, str, str], str],
    mtus: Mapping[int, Mapping[str, int]],
    verdict: Mapping[str, Any],
) -> list[list[str]]:
    """Return a row per network of every rank; ``found`` comes from :func:`gids`, ``mtus`` has a rank's interfaces."""
    by_rank = {number((pod["metadata"].get("labels") or {}).get(RANK)): pod for pod in pods}
    table = []
    for entry in plan.ranks:
        pod = by_rank.get(entry.rank, {})
        status = (pod.get("metadata", {}).get("annotations") or {}).get(NETWORK_STATUS)
        attached = {str(one.get("interface", "")): one for one in read_networks(status)}
        name = str(pod.get("metadata", {}).get("name", "no pod"))
        transport = _transport(entry.rank, verdict)
        for place, network in enumerate(entry.networks or [None]):
            first = [str(entry.rank), entry.node, name] if place == 0 else ["", "", ""]
            last = transport if place == 0 else ""
            if network is None:
                table.append([*first, *[UNKNOWN] * 6, last])
                continue
            ips = attached.get(network.interface, {}).get("ips")
            address = str(ips[0]) if isinstance(ips, list) and ips else UNKNOWN
            mtu = str(mtus.get(entry.rank, {}).get(network.interface, UNKNOWN))
            gid = found.get((entry.node, network.rdma_device, address), UNKNOWN)
            table.append(
                [*first, str(place), network.rdma_device or UNKNOWN, network.interface, address, mtu, gid, last]
            )
    return table


def conclusion(plan: Plan, verdict: Mapping[str, Any], generation: Mapping[str, Any]) -> list[str]:
    """Return the lines under the table: the verdict, its file, the bytes on each cable, and the speed of one stream."""
    lines = []
    if plan.expect.ranks < 2:
        lines.append("Transport: none, because one GPU exchanges nothing")
    elif verdict:
        satisfied = "as expected" if verdict.get("satisfied") else "NOT as expected"
        lines.append(
            f"Transport: {verdict.get('verdict', 'unknown')} ({verdict.get('transport_class', 'unknown')}),"
            f" by {verdict.get('evidence', 'no')} evidence, {satisfied}"
        )
    else:
        lines.append("Transport: not verified in this run; run playbooks/verify.yml")
    if written := verdict.get("evidence_files"):
        lines.append(f"Proof: {written[-1]}; the logs that it rests on are beside it")
    cables = (verdict.get("counters") or {}).get("cables") or {}
    lines += [f"Cable {cable}: {count / 1e6:.1f} MB by RDMA" for cable, count in cables.items()]
    if generation:
        lines.append(
            f"Speed: {generation['tokens_per_second']:.1f} tokens/s in one stream of {generation['tokens']} tokens,"
            f" the first after {generation['first_token_seconds']:.2f} s"
        )
    return lines


def judged(said: Mapping[str, Any]) -> list[str]:
    """Return the line about what the image said of its command lines before the start; none if it was not asked."""
    if not said:
        return []
    release, why = said.get("release") or "unknown", said.get("message")
    cost = f"{said.get('seconds', 0):.0f} s, {said.get('mebibytes', 0):.0f} MiB"
    return [f"Command lines: {said['verdict']} by the image's own SGLang {release} ({cost}){f': {why}' if why else ''}"]


def next_steps(plan: Plan, kubeconfig: str, context: str) -> list[str]:
    """Return the commands that send a first request. A model that only embeds has no chat."""
    api = f"curl http://127.0.0.1:{plan.service.port}/v1"
    chat = "/chat/completions -H 'Content-Type: application/json' -d '" + json.dumps(_CHAT) + "'"
    embeds = bool(plan.ranks) and "--is-embedding" in plan.ranks[0].argv
    forward = f"{kubectl(kubeconfig, context)} -n {plan.namespace} port-forward service/{plan.service.name}"
    return [
        "Next, in two terminals (docs/serving.md says what a key or TLS changes):",
        f"  {forward} {plan.service.port}",
        f"  {api}{'/models' if embeds else chat}",
    ]


def summary(
    plan: Plan,
    pods: Sequence[Mapping[str, Any]],
    found: Mapping[tuple[str, str, str], str],
    mtus: Mapping[int, Mapping[str, int]],
    verdict: Mapping[str, Any],
    generation: Mapping[str, Any],
    kubeconfig: str,
    context: str,
) -> list[str]:
    """Return the lines of the summary; ``context`` is the one of the kubeconfig."""
    title = (
        f"{plan.instance}: profile {plan.profile}/{plan.preset}, SGLang {plan.sglang_version},"
        f" {len(plan.ranks)} rank(s), RDMA mode {plan.rdma_mode}"
    )
    waived = [f"Waived: {', '.join(plan.waived)} (serving_plan_waive)"] if plan.waived else []
    table = align([HEADINGS, *rows(plan, pods, found, mtus, verdict)])
    return [
        title,
        "",
        *table,
        "",
        *waived,
        *conclusion(plan, verdict, generation),
        *next_steps(plan, kubeconfig, context),
    ]


def shown_logs(read: Sequence[Mapping[str, Any]], namespace: str, kubeconfig: str, context: str) -> list[str]:
    """Return the logs of ranks below the names of their pods, and the command that follows the first of them.

    ``read`` are the results of reading one log each, with the pod as ``item``.
    """
    lines: list[str] = []
    for each in read:
        pod = each["item"]
        lines += [f"{pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}:"]
        lines += [f"  {line}" for line in each.get("log_lines") or ["(nothing yet)"]]
    if not read:
        return ["No rank has started, so there is no log. playbooks/serve_status.yml shows what they wait for."]
    first = read[0]["item"]["metadata"]["name"]
    return [*lines, "", "Follow it:", f"  {kubectl(kubeconfig, context)} -n {namespace} logs -f {first} -c sglang"]


def head_values(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags of the server in a pod's spec with the words after them."""
    containers = {each["name"]: each for each in spec["containers"]}
    words = [str(word) for word in containers.get("sglang", {}).get("command") or []]
    return dict(pairwise(words[words.index("--") + 1 :] if "--" in words else words))


def served(workloads: Sequence[Mapping[str, Any]], namespace: str, instance: str) -> str:
    """Return the model and the address of a group, read from the command of its head; empty without a head."""
    for item in workloads:
        values = head_values(item["spec"]["template"]["spec"])
        # Of the ranks, only the head listens for requests.
        if "--model-path" in values and values.get("--node-rank", "0") == "0":
            address = f"http://{instance}.{namespace}:{values.get('--port', '30000')}/v1"
            return f"{instance} serves {values['--model-path']} at {address}, in the cluster"
    return ""


# Compare the settings that a running server reports with those it was given.
#
# SGLang changes about a third of its settings without refusing them; ``/server_info`` shows the values that it uses.

# Names of the parser in releases up to 0.5.13 -> names of the settings; later parsers use the latter.
_RENAMED = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
    "data_parallel_size": "dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}


def asked(argv: Sequence[str], version: str, history: History) -> dict[str, Any]:
    """Return the settings of a command line under SGLang's own names, as the release's parser stores them."""
    catalogue = history.nearest(Version.parse(version))[0]
    stored = parse_flags(catalogue, history, clean_argv(argv)).stored
    return {_RENAMED.get(name, name): value for name, value in stored.items()}


def unforeseen(resolved: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """Return a line for every setting that the server runs with another value than its image resolved before the start.

    ``resolved`` are the head's values as the image's check returns them.
    """
    return [
        f"{key}: the check of the image expected {value}, runs {info[key]}"
        for key, value in sorted(resolved.items())
        if key in info and value != info[key]
    ]


def _same_version(wanted: str, runs: str) -> bool:
    try:
        return Version.parse(wanted).means(Version.parse(runs))
    except ValueError:
        return wanted == runs


def differences(argv: Sequence[str], info: Mapping[str, Any], version: str, history: History) -> list[str]:
    """Return a line for every setting that the server runs with another value than it was given.

    Flags that the server does not report are left out, since their values can't be compared. Raises ValueError when
    ``version`` is not a version.
    """
    running = {_RENAMED.get(key, key): value for key, value in info.items()}
    found = [
        f"{key}: asked for {wanted}, runs {running[key]}"
        for key, wanted in sorted(asked(argv, version, history).items())
        if key in running and wanted != running[key]
    ]
    if info.get("version") and not _same_version(version, str(info["version"])):
        found.insert(0, f"version: the profile is for {version}, the image runs {info['version']}")
    return found
