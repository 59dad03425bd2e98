# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED K3s of gb10.cluster's lab: starts real Kubernetes components with K3s's files and paths.

It is no K3s: no embedded Traefik, ServiceLB, Helm controller or registry mirror. Real K3s takes its place with
LAB_K3S=PATH.
"""

import sys

from . import tools
from .agent import Agent
from .children import Children, log
from .join import Refused
from .server import Server
from .settings import StandInError, load, release

_COMMANDS = {
    "kubectl": tools.kubectl,
    "ctr": tools.ctr,
    "token": tools.token,
    "secrets-encrypt": tools.secrets_encrypt,
    "etcd-snapshot": tools.etcd_snapshot,
}


def run(role: str, arguments: list[str]) -> int:
    """Run a server or an agent until systemd stops it or a failure ends it."""
    settings = load(role, arguments)
    if settings.flag("cluster-reset"):
        return tools.cluster_reset(settings)
    log(f"this is the lab's stand-in for K3s {release()['version']}, starting as {role}")
    children = Children()
    try:
        if role == "server":
            Server(settings, children).start()
        if role == "agent" or not settings.flag("disable-agent"):
            Agent(settings, children).start()
        children.watch()
    except KeyboardInterrupt:
        log("stopping")
    finally:
        children.stop()
    return 0


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit status."""
    if arguments[:1] in (["--version"], ["-v"]):
        return tools.version()
    try:
        if arguments[:1] in (["server"], ["agent"]):
            return run(arguments[0], arguments[1:])
        if arguments and arguments[0] in _COMMANDS:
            return _COMMANDS[arguments[0]](arguments[1:])
        simulated = ", ".join(["server", "agent", *_COMMANDS, "--version"])
        raise StandInError(f"`k3s {' '.join(arguments[:1])}` is not simulated; these are: {simulated}")
    except (StandInError, Refused, OSError) as error:
        print(f"FATA k3s stand-in: {error}", file=sys.stderr)
        return 1
