# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find unknown variables and invalid values before any host is changed."""

from __future__ import annotations

import difflib
import ipaddress
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import descending

from .._controller.data import ROLES, Rules, read_yaml

# Compare the value of a variable with its type, and with conditions that a type cannot express.

SHARED_VARIABLES = ROLES.parent / "meta" / "shared_variables.yml"

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """Every variable with its spec, by the role or prefix that owns it."""

    shared: Mapping[str, Spec]
    command_line: Mapping[str, Spec]
    roles: Mapping[str, Mapping[str, Spec]]

    def owner(self, name: str) -> str:
        """Return the prefix that owns a name: ``gb10``, a role, or none; ``gb10_lab_`` belongs to the lab."""
        if name.startswith("gb10_"):
            return "" if name.startswith("gb10_lab_") else "gb10"
        return max((role for role in self.roles if name.startswith(f"{role}_")), key=len, default="")

    def names(self, owner: str) -> Mapping[str, Spec]:
        """Return the variables with a prefix."""
        return self.shared if owner == "gb10" else self.roles.get(owner, {})


@cache
def load_known() -> Known:
    """Read the argument specs and the shared variables of this collection."""
    shared: dict[str, Spec] = {}
    command_line: dict[str, Spec] = {}
    for group in read_yaml(SHARED_VARIABLES):
        for name, spec in group["variables"].items():
            (command_line if spec["where"] == "command line" else shared)[name] = spec
    roles = {}
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml")):
        entry_points = read_yaml(path)["argument_specs"].values()
        roles[path.parts[-3]] = {
            name: spec for point in entry_points for name, spec in (point.get("options") or {}).items()
        }
    return Known(shared, command_line, roles)


# A name of an object (a name of DNS), and the key and the value of a label
OBJECT_NAME = r"(?=.{1,253}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY, LABEL_VALUE = rf"(?:{OBJECT_NAME}/)?{_WORD}", f"|{_WORD}"
# Keys that this collection, Kubernetes or Multus puts on pods
OWN_KEY = re.compile(
    r"(gb10\.cluster|statefulset\.kubernetes\.io|apps\.kubernetes\.io|k8s\.v1\.cni\.cncf\.io)/.*"
    r"|app\.kubernetes\.io/(name|instance|component|part-of|managed-by)|pod-template-hash|controller-revision-hash"
)
# Conditions that a type cannot express: the case of rule variables.value, the pattern, and an example.
FORMATS: Mapping[str, tuple[str, str, str]] = {
    "k3s_version": ("release", r"v\d+\.\d+\.\d+(-rc\d+)?\+k3s\d+", "v1.36.4+k3s1"),
    "multus_cni_version": ("release", r"v\d+\.\d+\.\d+", "v1.9.1"),
    "gb10_models_dir": ("path", r"|/.*", "/srv/models"),
    "k3s_data_dir": ("path", r"|/.*", "/var/lib/rancher/k3s"),
    "sglang_cache_dir": ("path", r"|/.*", "/var/lib/gb10-jit-cache"),
    "sglang_log_dir": ("path", r"|/.*", "/var/log/gb10"),
    # Modules on the controller run in the playbook's directory, and actions in that of the command.
    "k3s_airgap_dir": ("path", r"|[~/$].*", "/srv/k3s-airgap"),
    "multus_cni_archive": ("path", r"|[~/$].*", "/srv/cni-plugins.tgz"),
    "gb10_model_url": ("url", r"https?://\S+", "https://huggingface.co"),
    "k3s_api_host": ("mdns", r"(?i)(?!.*\.local\.?$).*", ""),
}
# The same for all variables whose names end so
ENDINGS = {
    "kubeconfig": ("path", r"|[~/$].*", "~/.kube/config"),
    "image": ("image", r"|(?!\w+://)[^\s@]+(@sha256:[0-9a-f]{64})?", ""),
    "namespace": ("namespace", r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?", "gb10-serving"),
    "class": ("name", f"|{OBJECT_NAME}", "high-priority"),
    "scheduler": ("name", f"|{OBJECT_NAME}", "kai-scheduler"),
}
# Directories of hosts that roles fill and clean
DIRECTORIES = {
    "gb10_models_dir": "/srv/models",
    "k3s_data_dir": "/var/lib/rancher/k3s",
    "sglang_cache_dir": "/var/lib/gb10-jit-cache",
    "sglang_log_dir": "/var/log/gb10",
}
SYSTEM = {
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
}
SYSTEM |= {"/var", "/usr/bin", "/usr/lib", "/usr/local", "/var/cache", "/var/lib", "/var/log", "/var/tmp"}
# Nothing below them is on a disk, or stays there over a restart.
VOLATILE = ("/dev/", "/proc/", "/run/", "/sys/", "/tmp/")
RANGES: Mapping[str, tuple[int, int]] = {
    "ansible_port": (1, 65535),
    "device_plugins_gpu_shares": (1, 128),
    "gateway_port": (1, 65535),
    "k3s_api_port": (1, 65535),
    "nccl_verify_bandwidth_port": (1, 65535),
    "serving_plan_rendezvous_port": (1, 65535),
    "models_share_port": (1, 65535),
    "models_streams": (1, 64),
    "node_tuning_gpu_clock_mhz": (200, 5000),
    "node_tuning_swappiness": (0, 200),
    "serving_plan_port": (1, 65535),
    "sglang_startup_timeout": (60, 604800),
}
# Seconds, at most a week
TIMEOUT = (0, 604800)
# Percentages of available memory, that of the milder step first
DESCENDING = ("node_tuning_memory_guard_percent", "sglang_memory_guard_percent")
# What a spec may require of a value. The playbooks of site leave Ansible's check of the specs of roles to check_value.
REQUIREMENTS = ("type", "elements", "choices")

_finding = Rules("_inventory").finding


@dataclass(frozen=True)
class Unreadable:
    """A value that Ansible cannot evaluate, for this reason."""

    reason: str


class Empty:
    """Stands for the value of a variable that has none after its name."""


def unreadable(known: Known, reason: str) -> Unreadable | None:
    """Return what is wrong with a template or vault, None if it only needs facts or the default of a role."""
    match = re.search(r"'(\w+)' is undefined", reason)
    needed = match[1] if match else ""
    # Ansible has these names in tasks only.
    task = needed in ("hostvars", "vars", "play_hosts") or "Omit" in reason
    later = task or needed.startswith("ansible_") or needed in known.names(known.owner(needed))
    return None if later or "has no attribute" in reason else Unreadable(reason.rstrip("."))


def usable(value: Any) -> bool:
    """Tell whether a value is known now; None stands for one that needs facts."""
    return value is not None and not isinstance(value, Unreadable | Empty)


def check_value(name: str, value: Any, spec: Spec) -> Iterator[Finding]:
    """Yield what is wrong with the value of a variable; nothing for None, a value that is not known yet."""
    if value is None:
        return
    if isinstance(value, Unreadable):
        yield _finding("variables.value/unreadable", None, key=name, reason=value.reason)
        return
    if isinstance(value, Empty):
        yield _finding("variables.value/empty", None, key=name)
        return
    shown = None if spec.get("no_log") else value
    rule = {key: spec[key] for key in REQUIREMENTS if key in spec}
    result = ArgumentSpecValidator({name: rule}).validate({name: value})
    for error in result.error_messages:
        # The rest of such a message is about types of Python.
        reason = re.sub(r".* unable to convert to (\w+)\b.*", r"this is not of the type \1", str(error), flags=re.S)
        yield _finding("variables.value/type", shown, key=name, error=reason, expected=_expected(spec))
    if name in DESCENDING and not result.error_messages and not descending(result.validated_parameters[name]):
        yield _finding("variables.value/descending", shown, key=name)
    ending = name.rpartition("_")[2]
    case, pattern, example = FORMATS.get(name) or ENDINGS.get(ending, ("", ".*", ""))
    if not re.fullmatch(pattern, str(value), re.S):
        yield _finding(f"variables.value/{case}", shown, key=name, example=example)
    yield from _check_place(name, value)
    # Ansible makes a list of a text.
    yield from _check_pods(name, result.validated_parameters.get(name))
    least, most = RANGES.get(name, TIMEOUT if name.endswith("_timeout") else (0, 0))
    outside = not (str(value).isdigit() and least <= int(value) <= most)
    if most and value != "" and outside and not result.error_messages:
        yield _finding("variables.value/number", shown, key=name, least=least, most=most)


def _check_place(name: str, value: Any) -> Iterator[Finding]:
    """Yield what is wrong with a directory that roles fill, or with a path of the kubeconfig on this machine."""
    if not isinstance(value, str) or not value:
        return
    place = posixpath.normpath(f"/{value.lstrip('/')}") if value.startswith("/") else ""
    if name in DIRECTORIES and (place in SYSTEM or place.startswith(VOLATILE)):
        yield _finding("variables.value/system", value, key=name, what=place, example=DIRECTORIES[name])
    if name.endswith("kubeconfig") and value[0] in "/~" and (value.endswith("/") or _is_directory(value)):
        yield _finding("variables.value/directory", value, key=name, example="~/.kube/config")


def _check_pods(name: str, value: Any) -> Iterator[Finding]:
    """Yield what is wrong with the owner's Secrets, labels or annotations of pods."""
    if name.endswith("_image_pull_secrets") and isinstance(value, list):
        for one in value:
            if not re.fullmatch(OBJECT_NAME, str(one)):
                yield _finding("variables.value/name", one, key=name, example="registry")
    labels = name.endswith("_pod_labels")
    if not (labels or name.endswith("_pod_annotations")) or not isinstance(value, dict):
        return
    for key, text in value.items():
        if OWN_KEY.fullmatch(str(key)):
            yield _finding("variables.value/own", text, key=f"{name}: {key}")
        elif not re.fullmatch(LABEL_KEY, str(key)) or (labels and not re.fullmatch(LABEL_VALUE, str(text))):
            yield _finding("variables.value/label", text, key=f"{name}: {key}")
        elif not isinstance(text, str):
            yield _finding("variables.value/text", text, key=f"{name}: {key}")


def _is_directory(path: str) -> bool:
    try:
        return Path(path).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # a path of another user or without a home
        return False


def _expected(spec: Spec) -> str:
    if spec.get("choices"):
        return f"Choose one of {', '.join(map(str, spec['choices']))}."
    kinds = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "dict": "a mapping, as {name: value}",
    }
    if spec["type"] == "list" and spec.get("elements") == "dict":
        return "Write a list of mappings: one line per entry, as - {name: value, …}."
    kind = kinds.get(spec["type"])
    return f"Write {kind or 'a ' + str(spec['type'])}."


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
                yield Rules("_inventory").finding(
                    "variables.port", port, host, key=name, place=place, other=taken[port]
                )
            taken.setdefault(port, name)
            if name == HEAD:
                taken |= {port + number: user for number, user in AFTER_HEAD.items()}


def check_guards(known: Known, variables: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return a warning where earlyoom would end one process before the supervisor stops the whole group."""
    found = {}
    for values in variables.values():
        both = [values.get(name, known.names(known.owner(name))[name]["default"]) for name in DESCENDING]
        numbers = all(isinstance(one, list) and all(isinstance(n, int | float) for n in one) for one in both)
        if numbers and all(map(descending, both)) and both[0][0] >= both[1][1]:
            words = {"key": DESCENDING[0], "group": both[1][1], "other": DESCENDING[1]}
            found[str(both)] = _finding("variables.guards", both[0], **words)
    return list(found.values())


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
# Kubernetes makes these namespaces itself, and does not delete them.
OWN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
# Similarity from which an unknown name counts as a misspelling of a variable of this collection.
ALIKE = 0.8

# Names that other programs and playbooks use for the token of the hub; nothing here reads them.
_TOKENS = (
    *("hf_token", "hf_hub_token", "hub_token", "huggingface_token", "huggingface_hub_token"),
    *("hugging_face_token", "hugging_face_hub_token"),
)
FOREIGN = dict.fromkeys([*_TOKENS, *map(str.upper, _TOKENS)], "sglang_hf_token")
# Removed variables, and what is true without them
GONE = {
    "bench_client": "this collection's client measures every cell",
    "fabric_check_bandwidth_program": "ib_write_bw measures",
    "multus_cni_package": "the package is containernetworking-plugins",
    "multus_cni_package_dir": "the package installs into /usr/lib/cni",
    "nccl_verify_interval": "the logs are read every 3 seconds",
    "serving_plan_workload": "each rank is a StatefulSet",
    "sglang_host_ipc": "a rank has an IPC namespace of its own",
    "sriov_persist": "a unit restores the VFs after each reboot",
}


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
        if not known.owner(name) and (alike := meant(known, name)):
            yield _finding("variables.unknown/misspelt", None, key=f"-e {name}", alike=alike)


def meant(known: Known, name: str) -> str:
    """Return the variable that a name which does not exist resembles; empty if there is none or the name exists."""
    names = known.names(owner) if (owner := known.owner(name)) else known.command_line
    if name in names:
        return ""
    shared = f"gb10_{name}"
    return shared if shared in known.shared else next(iter(difflib.get_close_matches(name, names, 1, ALIKE)), "")


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
        named = {str(values.get("gb10_namespace")) for values in variables.values()}
        return [_finding("variables.namespace", name) for name in sorted(named & set(OWN_NAMESPACES))]
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
