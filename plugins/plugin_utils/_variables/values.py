# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the value of a variable with its type, and with conditions that a type cannot express."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.memory import descending

from .._paths import ROLES
from .._rules import Rules
from .._yaml import read_yaml

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

_finding = Rules("_variables").finding


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
