# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find unknown variables and invalid values before any host is changed."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .values import Known, Spec, check_value

# Of a node with K3s (docs.k3s.io/installation/requirements, and the listeners of a node of v1.36)
K3S = {2379: "etcd", 2380: "etcd", 5001: "K3s's embedded registry", 6444: "K3s's load balancer"}
K3S |= {10010: "containerd", 10250: "the kubelet", 10256: "kube-proxy", 10257: "K3s", 10258: "K3s", 10259: "K3s"}
# {place: (variables whose programs listen there, ports that others have there)}
PLACES: Mapping[str, tuple[tuple[str, ...], Mapping[int, str]]] = {
    "on the host": (("k3s_api_port", "models_share_port"), {22: "ssh", **K3S}),
    "in the pod of the head": (("serving_plan_port", "serving_plan_rendezvous_port", "nccl_verify_bandwidth_port"), {}),
    # serving/router.py
    "in the pod of the gateway": (("gateway_port",), {29000: "the gateway's metrics"}),
}
HEAD = "serving_plan_port"
# The gate and the switch publish metrics at the second and the third port after the server's.
AFTER_HEAD = {2: "the metrics of the transport gate", 3: "the metrics of the fallback"}


def check_ports(known: Known, variables: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return an error for each variable in ``{host: {name: value}}`` whose port another program has."""
    found: dict[str, Finding] = {}
    for host, values in variables.items():
        for finding in _collisions(known, values, host):
            found.setdefault(f"{finding.key} {finding.value} {finding.reason}", finding)
    return list(found.values())


def _collisions(known: Known, values: Mapping[str, Any], host: str) -> Iterator[Finding]:
    for place, (names, others) in PLACES.items():
        taken = dict(others)
        for name in names:
            given = values.get(name, known.names(known.owner(name))[name].get("default"))
            if not str(given).isdecimal():  # another check reports it
                continue
            port = int(given)
            if port in taken:
                yield Rules("_variables").finding(
                    "variables.port", port, host, key=name, place=place, other=taken[port]
                )
            taken.setdefault(port, name)
            if name == HEAD:
                taken |= {port + number: user for number, user in AFTER_HEAD.items()}


_SECRET: Spec = {"type": "str", "no_log": True}
# Variables of Ansible itself. It reports a wrong value as a failure of a task, and does not know a misspelt name.
CONNECTION: Mapping[str, Spec] = {
    "ansible_host": {"type": "str"},
    "ansible_user": {"type": "str"},
    "ansible_port": {"type": "int"},
    "ansible_become": {"type": "bool"},
    # Often in a vault, whose password may be missing.
    "ansible_password": _SECRET,
    "ansible_ssh_pass": _SECRET,
    "ansible_become_password": _SECRET,
    "ansible_become_pass": _SECRET,
}
# Similarity from which a name counts as a misspelling of one of them; facts and other variables have similar names.
VERY_ALIKE = 0.9
# Read on one host for the whole group, so hosts without a value use that one
OF_GROUP = ("serving_plan_profile", "serving_plan_preset", "gb10_models_dir")
# Read on every node, so a host without a value has the default
OF_NODES = ("k3s_data_dir",)
# Kubernetes takes these names for nodes only.
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# The label kubernetes.io/hostname has the name too, and a label's value has 63 characters at most.
LONGEST_NAME = 63
# A name of DNS, which digits and dots alone are not
HOST_NAME = re.compile(r"(?=.*[A-Za-z])[\w.-]+")
# Where Ansible keeps words after -e that assign nothing
RAW = "_raw_params"
# Tags that Ansible defines
SPECIAL_TAGS = ("all", "tagged", "untagged", "always", "never")
# The group of all hosts, to which the plays for all hosts refer
CLUSTER = "gb10_cluster"
SERVERS = "gb10_servers"
NODES = "gb10_nodes"
GROUPS = (CLUSTER, SERVERS, NODES)
PROVIDER, EXISTING = "gb10_kubernetes_provider", "existing"
# Variables without which an existing cluster would be looked for where K3s's kubeconfig is.
EXISTING_NEEDS = ("gb10_kubeconfig", "gb10_kube_context")
K3S_ONLY = ("k3s_", "multus_", "device_plugins_")
# Role multus defines the networks there too.
NOT_ONLY = ("multus_kubeconfig", "multus_kube_context", "multus_namespace", "multus_sriov_resource_prefix")
# Similarity from which an unknown name counts as a misspelling of a variable of this collection.
ALIKE = 0.8

# Names that other programs and playbooks use for the token of the hub; nothing here reads them.
_TOKENS = (
    *("hf_token", "hf_hub_token", "hub_token", "huggingface_token", "huggingface_hub_token"),
    *("hugging_face_token", "hugging_face_hub_token"),
)
FOREIGN = dict.fromkeys([*_TOKENS, *map(str.upper, _TOKENS)], "sglang_hf_token")
# Removed variables, and what is true without them
GONE = {"serving_plan_workload": "each rank is a StatefulSet"}

_finding = Rules("_variables").finding

HostVariables = Mapping[str, Mapping[str, Any]]


def check_variables(known: Known, variables: HostVariables, extra: Mapping[str, Any]) -> list[Finding]:
    """Return all findings about ``{host: {name: value}}``; ``extra`` holds the variables given with -e."""
    found: dict[tuple[str, str], tuple[Finding, list[str]]] = {}
    for host, values in variables.items():
        for name, value in values.items():
            for finding in _check(known, name, value, name in extra):
                found.setdefault((name, str(finding)), (finding, []))[1].append(host)
    placed = [_placed(finding, hosts, len(variables)) for finding, hosts in found.values()]
    return [
        *placed,
        *_differing(known, variables),
        *_hosts(variables),
        *_misspelt(known, extra),
    ]


def _differing(known: Known, variables: HostVariables) -> Iterator[Finding]:
    for name in (*OF_GROUP, *OF_NODES):
        hosts: dict[str, list[str]] = {}
        default = known.names(known.owner(name))[name].get("default") if name in OF_NODES else None
        for host, values in variables.items():
            if isinstance(value := values.get(name, default), str):
                hosts.setdefault(value, []).append(host)
        if len(hosts) > 1:
            shown = "; ".join(f"{', '.join(names)}: {value}" for value, names in hosts.items())
            yield _finding("variables.differs/k3s" if name in OF_NODES else "variables.differs", shown, key=name)


def _hosts(variables: HostVariables) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for host, values in variables.items():
        name, address = str(values.get("k3s_node_name") or host), values.get("ansible_host")
        if (other := first.setdefault(name, host)) != host:
            yield _finding("inventory.name", name, host, other=other)
        if not NODE_NAME.fullmatch(name):
            yield _finding("inventory.host", name, host)
        elif len(name) > LONGEST_NAME:
            yield _finding("inventory.host/long", name, host, count=len(name), most=LONGEST_NAME)
        if isinstance(address, str) and not _is_address(address):
            yield _finding("inventory.address", address, host)
        if address is None and "ansible_ssh_host" in values:
            yield _finding("inventory.address/old", values["ansible_ssh_host"], host)


def _is_address(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return HOST_NAME.fullmatch(address) is not None
    return True


def _misspelt(known: Known, extra: Mapping[str, Any]) -> Iterator[Finding]:
    if RAW in extra:
        yield _finding("variables.assignment", extra[RAW])
    for name in extra:
        if name not in known.command_line and not known.owner(name) and (alike := meant(known, name)):
            yield _finding("variables.unknown/misspelt", None, key=f"-e {name}", alike=alike)


def meant(known: Known, name: str) -> str:
    """Return the variable that a name which does not exist resembles; empty if there is none or the name exists."""
    names = known.names(owner) if (owner := known.owner(name)) else known.command_line
    return "" if name in names else next(iter(difflib.get_close_matches(name, names, 1, ALIKE)), "")


def check_tags(asked: Mapping[str, Iterable[str]], known: Iterable[str]) -> list[Finding]:
    """Return a finding for each tag in ``{option: tags}`` that no task has; Ansible would ignore it."""
    own = set(known)
    names = sorted({*own, *SPECIAL_TAGS})
    unknown = [(option, tag) for option, tags in asked.items() for tag in tags if tag not in names]
    found = []
    for option, tag in unknown:
        alike = difflib.get_close_matches(tag, own, 1)
        choice = f"Did you mean {alike[0]}?" if alike else f"Choose from {', '.join(names)}."
        found.append(_finding("run.tag", tag, key=option, choice=choice))
    return found


def _placed(finding: Finding, hosts: list[str], of: int) -> Finding:
    # A list with several wrong entries is one finding.
    hosts = list(dict.fromkeys(hosts))
    where = "all hosts" if len(hosts) == of > 1 else ", ".join(hosts)
    return replace(finding, where=where)


def _check(known: Known, name: str, value: Any, on_command_line: bool) -> Iterator[Finding]:
    if name in known.command_line:
        spec = known.command_line[name]
        if on_command_line:
            yield from check_value(name, value, spec)
        else:
            yield _finding("variables.bare", value, key=name, variable=spec["sets"])
    elif name in FOREIGN:
        yield _finding("variables.unknown/foreign", None, key=name, meant=FOREIGN[name])
    elif name in GONE:
        yield _finding("variables.unknown/gone", value, key=name, instead=GONE[name])
    elif name in CONNECTION:
        yield from check_value(name, value, CONNECTION[name])
    elif alike := difflib.get_close_matches(name, CONNECTION, 1, VERY_ALIKE):
        yield _finding("variables.unknown/misspelt", None, key=name, alike=alike[0])
    elif owner := known.owner(name):
        names = known.names(owner)
        if name in names:
            yield from check_value(name, value, names[name])
        else:
            yield from _check_name(known, name, owner)


def _check_name(known: Known, name: str, owner: str) -> Iterator[Finding]:
    if alike := meant(known, name):
        yield _finding("variables.unknown/misspelt", None, key=name, alike=alike)
    elif owner == "gb10":
        yield _finding("variables.unknown/shared", None, key=name)
    else:
        yield _finding("variables.unknown/role", None, key=name, role=owner)


def check_node_names(variables: HostVariables, nodes: Iterable[str]) -> list[Finding]:
    """Return an error for each host that serves under another name than that of its node."""
    names = {host: variables.get(host, {}).get("k3s_node_name") or host for host in nodes}
    return [_finding("inventory.node", name, host) for host, name in names.items() if name != host]


def check_strategy(strategy: str, origin: str) -> list[Finding]:
    """Return an error if the user's strategy does not run each task on all hosts before the next one."""
    wrong = strategy.rpartition(".")[2] in {"free", "host_pinned"}
    return [_finding("variables.strategy", strategy, origin=origin)] if wrong else []


def check_provider(variables: HostVariables, needed: str) -> list[Finding]:
    """Return what is wrong with the provider of Kubernetes; ``needed`` is the one that the playbook needs, if any."""
    by_provider: dict[str, list[str]] = {}
    for host, values in variables.items():
        by_provider.setdefault(str(values.get(PROVIDER) or "k3s"), []).append(host)
    if len(by_provider) > 1:
        shown = "; ".join(f"{provider}: {', '.join(hosts)}" for provider, hosts in sorted(by_provider.items()))
        return [_finding("variables.provider/differs", None, shown=shown)]
    if EXISTING not in by_provider:
        return []
    if needed == "k3s":
        return [_finding("variables.provider/foreign", EXISTING)]
    found = []
    unset = [name for name in EXISTING_NEEDS if not all(values.get(name) for values in variables.values())]
    if unset:
        found.append(_finding("variables.provider/unset", EXISTING, unset=" and ".join(unset)))
    names = {name for values in variables.values() for name in values} - set(NOT_ONLY)
    unused = sorted(name for name in names if name.startswith(K3S_ONLY))
    if unused:
        found.append(_finding("variables.provider/unused", EXISTING, unused=", ".join(unused)))
    return found


def check_servers(variables: HostVariables, groups: Mapping[str, list[str]]) -> list[Finding]:
    """Return an error for two servers of K3s, and a warning for hosts that are in no group with a task."""
    servers = groups.get(SERVERS, [])
    existing = any(values.get(PROVIDER) == EXISTING for values in variables.values())
    found = [_finding("inventory.servers", list(servers))] if len(servers) == 2 and not existing else []
    unused = sorted({*groups.get(CLUSTER, [])} - {*servers, *groups.get(NODES, [])})
    return found + ([_finding("inventory.unused", unused)] if unused else [])


def needed_groups(variables: HostVariables, groups: list[str]) -> list[str]:
    """Return the groups that need hosts: an existing cluster has its own servers, which the inventory need not name."""
    existing = any(values.get(PROVIDER) == EXISTING for values in variables.values())
    return [name for name in groups if not existing or name != SERVERS]


def check_groups(groups: Mapping[str, list[str]], needed: list[str]) -> list[Finding]:
    """Return a finding for the groups that a playbook needs and that are empty or lack hosts of the others."""
    empty = [name for name in needed if not groups.get(name)]
    others = [name for name, hosts in groups.items() if hosts and name not in GROUPS]
    alike = {name: close[0] for name in empty if (close := difflib.get_close_matches(name, others, 1, ALIKE))}
    findings = [_finding("inventory.group/misspelt", [], key=name, alike=close) for name, close in alike.items()]
    empty = [name for name in empty if name not in alike]
    known = sorted({host for name in GROUPS for host in groups.get(name, [])})
    if known:
        # The inventory was read, so one group is missing in it.
        own = [name for name in empty if name in GROUPS]
        findings += [_finding(f"inventory.group/{name}", [], key=name, example=known[0]) for name in own]
        empty = [name for name in empty if name not in own]
    what = "this group" if len(empty) == 1 else "these groups"
    findings += [_finding("inventory.group/empty", [], key=", ".join(empty), what=what)] if empty else []
    cluster = groups.get(CLUSTER, [])
    missing = sorted({host for name in needed for host in groups.get(name, [])} - set(cluster))
    if CLUSTER in needed and cluster and missing:
        findings.append(_finding("inventory.cluster", cluster, missing=", ".join(missing)))
    return findings
