# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as the rules of preflight see it, and why a host could not be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints, is_typeddict

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU, RdmaMode
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts


@dataclass(frozen=True)
class Settings:
    """Requirements for hosts. Space in GiB, rates in Gb/s; ``rdma_mode`` is how pods get RDMA (gb10_rdma_mode).

    A negative ``min_free_gib`` means what the plan needs.
    """

    min_free_gib: float = -1
    min_rate_gbps: float = 200
    min_pcie_gbps: float = 100
    rdma_mode: RdmaMode = "privileged"


@dataclass(frozen=True)
class Needs:
    """What a group needs on each of its ``nodes``, in GiB.

    ``images`` has the size of each image, ``models`` that of the weights by the names of their directories in
    ``models_dir``. Without ``models_dir`` each pod downloads them.
    """

    nodes: tuple[str, ...] = ()
    profile: str = ""
    images: Mapping[str, float] = field(default_factory=dict)
    models: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    models_dir: str = ""
    swap_gib: float = 0


@dataclass(frozen=True)
class Host:
    """A host's facts (None: not read), and the role that it will have.

    ``pfs``, ``rails`` (``{PF: rail}``), ``networks`` (``{rail: network}``) and ``vfs`` (``{netdev: MAC}``) come from
    the fabric plan; a host without PFs is not a GPU node.
    ``version`` is the wanted K3s release, empty if it is unknown; ``k3s`` has other wanted settings by K3s's names.
    ``share_port`` is the TCP port on which it serves models to other nodes (models_share_port).
    ``needs`` is what the group that is planned needs on its nodes; None if it is not known.
    ``unread`` is what action preflight_info returns about a host that it could not read, or under ``printed`` what the
    login of a host printed that it did read; ``misread`` has the names of
    the facts that were absent or had another type (shapes.py).
    """

    name: str
    facts: Facts | None
    server: bool = False
    embedded_etcd: bool = False
    embedded_registry: bool = False
    version: str = ""
    upgrading: bool = False
    kubelet_args: tuple[str, ...] = ()
    api_host: str = ""
    k3s: Mapping[str, Any] = field(default_factory=dict)
    management_interface: str | None = None
    pfs: tuple[str, ...] = ()
    rails: Mapping[str, str] = field(default_factory=dict)
    vfs: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    mtu: int = DEFAULT_MTU
    share_port: int = 7420
    settings: Settings = field(default_factory=Settings)
    needs: Needs | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    misread: Sequence[str] = ()

    @property
    def known(self) -> Facts:
        """Return the facts of a host; the host must have been read."""
        if self.facts is None:
            raise ValueError(f"{self.name}: no facts were read")
        return self.facts

    @property
    def readable(self) -> Mapping[str, Any]:
        """Return the facts with which the known combinations are compared."""
        return {**self.known, "arguments": (self.known["command_line"] or "").split()}

    @property
    def swap_gib(self) -> float:
        """Return the swap that the host needs while its group loads the weights."""
        return self.needs.swap_gib if self.needs and self.name in self.needs.nodes else 0.0

    @property
    def role(self) -> str:
        """Return K3s's name for the role of the host."""
        return "server" if self.server else "agent"


# Facts of which an empty value is an answer: no swap, no container runtime yet
MAY_BE_EMPTY = ("swap", "runtime_memlock")
Fault = Mapping[str, Any]
"""``value`` of the finding, ``key`` or ``severity`` if other than the rule's, and the values for its sentences."""
Find = Callable[[Host], Iterable[Fault]]


def fault_if(condition: object, value: object, **names: object) -> Sequence[Fault]:
    return [{"value": value, **names}] if condition else []


def find_unknown(host: Host, needed: Mapping[str, str]) -> Sequence[Fault]:
    """Return one fault for all facts among ``{fact: what depends on it}`` that a host did not tell."""
    facts: Mapping[str, Any] = host.known
    unknown = {
        name: what
        for name, what in needed.items()
        if facts[name] is None or (name not in MAY_BE_EMPTY and facts[name] in ("", [], {}))
    }
    return fault_if(unknown, ", ".join(unknown), what=", ".join(unknown.values()))


# Give the facts of a host the types that the rules expect, whatever the host sent.

# More than any fact has: a command line of Linux has 4096 characters at most.
LONGEST_TEXT, LONGEST_LIST, LARGEST = 4096, 10_000, 2**63
_EMPTY: Mapping[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}


def shape_facts(raw: Any) -> tuple[Facts, list[str]]:
    """Return facts of which every part has its type, and the names of the parts that were absent or of another type.

    Such a part becomes None, or empty if its type has no None. An element of a list or a mapping that has another type
    is left out. A text, a list or a number beyond any fact's size counts as another type. A caller must report the
    names: an empty part is not a good one.
    """
    wrong: list[str] = []
    facts = cast(Facts, _shape(raw, Facts, "", wrong))
    return facts, list(dict.fromkeys(wrong))


def _shape(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    if is_typeddict(kind):
        given = raw if isinstance(raw, Mapping) else {}
        if given is not raw:
            wrong.append(name)
            parts: list[str] = []  # one name for the whole part is enough
        else:
            parts = wrong
        every = _hints(kind).items()
        return {key: _part(given, key, hint, f"{name}.{key}".lstrip("."), parts) for key, hint in every}
    choices = [choice for choice in get_args(kind) if choice is not NoneType] if NoneType in get_args(kind) else []
    if choices:
        return None if raw is None else _shape_or_none(raw, choices[0], name, wrong)
    if get_origin(kind) is list:
        items = raw if isinstance(raw, list) and len(raw) <= LONGEST_LIST else _reported(name, wrong, [])
        return [item for item in (_element(item, get_args(kind)[0], name, wrong) for item in items) if item is not _NOT]
    if get_origin(kind) is dict:
        found = raw if isinstance(raw, Mapping) and len(raw) <= LONGEST_LIST else _reported(name, wrong, {})
        each = get_args(kind)[1]
        shaped = {str(key)[:LONGEST_TEXT]: _element(item, each, name, wrong) for key, item in found.items()}
        return {key: item for key, item in shaped.items() if item is not _NOT}
    fits = isinstance(raw, kind if kind is not float else (int, float)) and (kind is bool or not isinstance(raw, bool))
    # Arithmetic fails with infinite numbers.
    possible = fits and (len(raw) <= LONGEST_TEXT if isinstance(raw, str) else abs(raw) < LARGEST)
    return raw if possible else _reported(name, wrong, _EMPTY[kind])


_NOT = object()


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of the parts. Without a cache, they are 60 % of the time that a host's facts take (profiled)."""
    return get_type_hints(kind)


def _part(given: Mapping[Any, Any], key: str, kind: Any, name: str, wrong: list[str]) -> Any:
    if key not in given:
        wrong.append(name)
        return _shape(None, kind, name, [])
    return _shape(given[key], kind, name, wrong)


def _shape_or_none(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    """Return None instead of an empty value for a part of another type, since its type has None for what is unknown."""
    mine: list[str] = []
    shaped = _shape(raw, kind, name, mine)
    wrong += mine
    return None if name in mine and not isinstance(raw, (list, Mapping)) else shaped


def _element(raw: Any, kind: Any, name: str, wrong: list[str]) -> Any:
    container = get_origin(kind) in (list, dict) or is_typeddict(kind)
    if container and not isinstance(raw, list if get_origin(kind) is list else Mapping):
        return _reported(name, wrong, _NOT)
    mine: list[str] = []
    shaped = _shape(raw, kind, name, mine)
    wrong += mine
    return shaped if container or not mine else _NOT


def _reported(name: str, wrong: list[str], value: Any) -> Any:
    wrong.append(name)
    return value


# Find out why a host could not be read, from the errors of ssh, sudo and Ansible.

# The first pattern that the error contains decides. ssh prints both lines about host keys when a key has changed.
_CAUSES = {
    "preflight.login.key_changed": "remote host identification has changed|host key .* has changed",
    "preflight.login.key_unknown": "host key verification failed|host key is known for",
    "preflight.login.name": "could not resolve hostname",
    "preflight.login.password": "sshpass|incorrect ssh password|invalid/incorrect (?:username/)?password",
    "preflight.login.sudo_password": "missing sudo password|sudo: a password is required",
    "preflight.login.sudo_wrong": r"incorrect sudo password|sudo: \d+ incorrect password|sorry, try again",
    "preflight.login.no_sudo": "not in the sudoers file|is not allowed to (?:execute|run sudo)|sudo: .*not found",
    "preflight.host.no_python": r"interpreter .* was not found|python[\d.]*: (?:not found|no such file)",
    "preflight.host.full": "no space left on device|disk quota exceeded",
    "preflight.host.read_only": "read-only file system",
    "preflight.host.no_directory": "failed to create temporary directory",
    "preflight.login.refused": r"permission denied \(|too many authentication failures",
    # Not "timed out" or "refused": an error of the module itself may contain these words.
    "preflight.login.no_answer": "failed to connect to the host via ssh|could not be sent to remote host",
}

_BEFORE = (
    "Task failed: |Failed to connect to the host via ssh: |"
    r"Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: "
)

UNKNOWN = "preflight.host.unread"


def error_of(result: Mapping[str, Any]) -> str:
    """Return all that a failed task says of its error."""
    return "\n".join(str(result.get(part) or "") for part in ("msg", "module_stderr", "module_stdout")).strip()


def explain(unread: Mapping[str, str]) -> tuple[str, Fault]:
    """Return the rule that explains the error of a host that could not be read, and the values for its sentences."""
    error = unread.get("error", "")
    words = {"address": unread.get("address", ""), "user": unread.get("user") or "USER"}
    for rule, pattern in _CAUSES.items():
        if re.search(pattern, error, re.IGNORECASE):
            return rule, {"value": _line(error, pattern), **words}
    return UNKNOWN, {"value": _line(error, r"\S") or None, **words}


def _line(error: str, pattern: str) -> str:
    """Return the line of the error that contains the pattern, without Ansible's words before it."""
    line = next((line for line in error.splitlines() if re.search(pattern, line, re.IGNORECASE)), "")
    return re.sub(f"^(?:{_BEFORE})+", "", line).strip("@ \t")[:200]
