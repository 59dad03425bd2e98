# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the settings of a K3s process from config.yaml, config.yaml.d, command line and environment, in K3s's order."""

import ipaddress
import json
import os
import pkgutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # on every host of the lab: netplan needs it

CONFIG = Path("/etc/rancher/k3s/config.yaml")
KUBECONFIG = Path("/etc/rancher/k3s/k3s.yaml")
REGISTRIES = Path("/etc/rancher/k3s/registries.yaml")
CACHE = Path("/opt/gb10-lab-cache")  # the lab's cache, as its hosts see it
API_PORT = 6443
_LISTS = {
    "disable", "kubelet-arg", "kube-apiserver-arg", "kube-controller-manager-arg", "kube-scheduler-arg",
    "kube-proxy-arg", "etcd-arg", "node-label", "node-taint", "tls-san",
}  # fmt: skip
_FLAGS = {"cluster-init", "cluster-reset", "debug", "disable-agent", "disable-network-policy", "embedded-registry",
          "nonroot-devices", "protect-kernel-defaults", "secrets-encryption"}  # fmt: skip
_ENVIRONMENT = {"K3S_URL": "server", "K3S_TOKEN": "token", "K3S_TOKEN_FILE": "token-file",
                "K3S_AGENT_TOKEN": "agent-token", "K3S_NODE_NAME": "node-name"}  # fmt: skip


class StandInError(Exception):
    """An error with its remedy; it ends the process."""


def release() -> dict[str, Any]:
    """Return what was packed into this program: ``{version, components, node}``; the last two are paths in the cache.

    For a real K3s it is ``{version, k3s, disable}``: its path in the cache, and components for which it has no images.
    """
    return dict(json.loads(pkgutil.get_data("standin", "release.json") or b"{}"))


def component(name: str) -> str:
    """Path of a Kubernetes component of this release."""
    return str(CACHE / release()["components"] / "bin" / name)


def node_programs() -> Path:
    """Directory of the CNI plugins that K3s includes."""
    return CACHE / release()["node"] / "bin"


@dataclass(frozen=True)
class Settings:
    """All settings of one process by K3s's names; lists are lists, flags are booleans."""

    role: str
    values: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """A setting as text."""
        value = self.values.get(key, default)
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    def flag(self, key: str) -> bool:
        """A setting that is on or off."""
        return str(self.values.get(key, False)).lower() == "true"

    def items(self, key: str) -> list[str]:
        """A setting that may be given several times."""
        value = self.values.get(key, [])
        return [str(item) for item in (value if isinstance(value, list) else [value]) if str(item)]

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self.text("data-dir", "/var/lib/rancher/k3s"))

    @property
    def server(self) -> Path:
        """Files of a server."""
        return self.data / "server"

    @property
    def agent(self) -> Path:
        """Files of every node."""
        return self.data / "agent"

    @property
    def node_name(self) -> str:
        """Name of the node in the cluster."""
        return self.text("node-name", socket.gethostname().lower())

    @property
    def node_ip(self) -> str:
        """Address of the node: the configured one, otherwise the one that the default route uses."""
        given = self.text("node-ip").split(",")[0]
        if given:
            return given
        argv = ["ip", "-json", "route", "get", "1.1.1.1"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StandInError(
                "no default routes found in /proc/net/route: set node-ip or give the host a default route"
            )
        return str(json.loads(done.stdout)[0]["prefsrc"])

    @property
    def cluster_cidr(self) -> str:
        """Network of the pods; an agent learns it when it joins."""
        return self.text("cluster-cidr", "10.42.0.0/16")

    @property
    def service_cidr(self) -> str:
        """Network of the services."""
        return self.text("service-cidr", "10.43.0.0/16")

    def service(self, number: int) -> str:
        """An address of that network: the first is the API's, the tenth the DNS's."""
        return str(ipaddress.ip_network(self.service_cidr)[number])

    @property
    def embedded_etcd(self) -> bool:
        """True if the datastore is etcd, which it stays once it was; otherwise it is SQLite."""
        started = (self.server / "db" / "etcd").is_dir()
        return self.role == "server" and (self.flag("cluster-init") or bool(self.text("server")) or started)

    def secret(self, key: str) -> str:
        """The value of ``key``, or the first line of the file that ``key``-file names."""
        path = self.text(f"{key}-file")
        if path:
            return Path(path).read_text().strip()
        return self.text(key)


def extra(settings: Settings, key: str) -> list[str]:
    """Return the user's arguments for a component. They follow the lab's, so they have precedence."""
    return [f"--{argument.lstrip('-')}" for argument in settings.items(key)]


def load(role: str, arguments: Sequence[str], config: Path = CONFIG) -> Settings:
    """Read all settings that K3s reads for ``k3s <role> <arguments>``."""
    values: dict[str, Any] = {key: os.environ[name] for name, key in _ENVIRONMENT.items() if os.environ.get(name)}
    given = _parse(arguments)
    config = Path(given.pop("config", os.environ.get("K3S_CONFIG_FILE") or config))
    for path in [config, *sorted(Path(f"{config}.d").glob("*.yaml"))]:
        if path.is_file():
            _merge(values, yaml.safe_load(path.read_text()) or {})
    _merge(values, given)
    return Settings(role, values)


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if key.endswith("+"):
            before = values.get(key[:-1], [])
            values[key[:-1]] = [*(before if isinstance(before, list) else [before]),
                                *(value if isinstance(value, list) else [value])]  # fmt: skip
        else:
            values[key] = value


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise StandInError(f"unexpected argument {word!r}")
        key, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = "true" if key in _FLAGS or not rest else rest.pop(0)
        if key in _LISTS:
            values.setdefault(key, []).append(value)
        else:
            values[key] = value
    return values
