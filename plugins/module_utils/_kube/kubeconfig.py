# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add one cluster to a kubeconfig, or remove it, without changing other entries."""

from __future__ import annotations

import base64
import copy
import shlex
from typing import Any

Config = dict[str, Any]
_SECTIONS = ("clusters", "users", "contexts")
# The fields that K3s writes. Clients run ``exec`` and ``auth-provider``, read the paths, and send their requests to
# ``proxy-url``, so a server that could set them would rule the controller.
_CLUSTER = ("certificate-authority-data",)
_USER = ("client-certificate-data", "client-key-data")

CLUSTER_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "context": {"type": "str", "required": True},
}
GROUP_SPEC = {name: {"type": "str", "required": True} for name in ("namespace", "instance")}
"""Argument specs of the options of the documentation fragments ``cluster`` and ``group``."""


def empty() -> Config:
    """Return a kubeconfig without a cluster."""
    return {"apiVersion": "v1", "kind": "Config", "preferences": {}, "clusters": [], "users": [], "contexts": []}


def _section(config: Config, name: str) -> list[Any]:
    entries = config.get(name) or []
    if not isinstance(entries, list):
        raise ValueError(f"{name} of the kubeconfig is not a list")
    return entries


class Refused(ValueError):
    """An entry of a server's kubeconfig that the controller must not use; the text names its key, never its value."""


def _data(section: str, entry: Any, keys: tuple[str, ...], ignored: tuple[str, ...] = ()) -> dict[str, str]:
    """Return ``keys`` of a server's entry, all base64. Raise Refused for a key that is not in ``keys`` or ignored."""
    if not isinstance(entry, dict):
        raise Refused(f"{section} is not a mapping")
    if others := sorted({ascii(key)[:60] for key in entry if key not in (*keys, *ignored)}):
        raise Refused(f"{section} has {', '.join(others[:5])}, and only {', '.join(keys)} is accepted")
    for key in keys:
        try:
            valid = bool(base64.b64decode(entry.get(key, ""), validate=True))
        except (TypeError, ValueError):
            valid = False
        if not valid or not isinstance(entry[key], str):
            raise Refused(f"{key} of {section} is missing or not base64")
    return {key: entry[key] for key in keys}


def renamed(source: Config, context: str, server: str) -> Config:
    """Return the only cluster of ``source`` (K3s names all its entries ``default``) under the name ``context``.

    ``server`` replaces K3s's address https://127.0.0.1:6443. ``source`` comes from the server: of it, only the CA, the
    client's certificate and the client's key are used. Raise Refused for anything else, or unless it has one cluster.
    """
    if not isinstance(source, dict):
        raise Refused("it is not a mapping")
    clusters, users = _section(source, "clusters"), _section(source, "users")
    if len(clusters) != 1 or len(users) != 1:
        raise Refused("the server's kubeconfig must have exactly one cluster and one user")
    cluster = _data("its cluster", clusters[0]["cluster"], _CLUSTER, ignored=("server",))
    return {
        "clusters": [{"name": context, "cluster": {**cluster, "server": server}}],
        "users": [{"name": context, "user": _data("its user", users[0]["user"], _USER)}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }


def merged(existing: Config | None, entries: Config) -> Config:
    """Return ``existing`` with ``entries`` in place of its entries of the same name; others keep their order.

    The current context is set only if there was none.
    """
    result = copy.deepcopy(existing) if existing else empty()
    for section in _SECTIONS:
        new = {entry["name"]: entry for entry in entries[section]}
        kept = [new.pop(entry["name"], entry) for entry in _section(result, section)]
        result[section] = kept + list(new.values())
    if not result.get("current-context"):
        result["current-context"] = entries["contexts"][0]["name"]
    return result


def removed(existing: Config, context: str) -> Config:
    """Return ``existing`` without the context, cluster and user called ``context``."""
    result = copy.deepcopy(existing)
    for section in _SECTIONS:
        result[section] = [entry for entry in _section(result, section) if entry["name"] != context]
    if result.get("current-context") == context:
        result["current-context"] = ""
    return result


def server_of(config: Config | None, context: str) -> str:
    """Return the address of the context's cluster, or an empty string if the context does not exist."""
    if not config:
        return ""
    clusters = {entry["name"]: entry["cluster"]["server"] for entry in _section(config, "clusters")}
    contexts = {entry["name"]: entry["context"]["cluster"] for entry in _section(config, "contexts")}
    return str(clusters.get(contexts.get(context), ""))


# kubectl reads this file by itself.
_DEFAULT_KUBECONFIG = "~/.kube/config"


def kubectl(kubeconfig: str | None, context: str | None) -> str:
    """Return the beginning of a command; the shell replaces a ``~`` that is not quoted.

    The context is named, because the current one of a kubeconfig may be that of another cluster.
    """
    file = kubeconfig or _DEFAULT_KUBECONFIG
    home = "~/" if file.startswith("~/") else ""
    place = "" if file == _DEFAULT_KUBECONFIG else f" --kubeconfig {home}{shlex.quote(file.removeprefix(home))}"
    return f"kubectl{place}" + (f" --context {shlex.quote(context)}" if context else "")
