# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED CoreDNS: every node answers its own pods. It knows only IPv4 addresses of the cluster's Services."""

import ipaddress
import json
import socket
import struct
import subprocess
import urllib.parse
import urllib.request
from typing import Any

from . import pki
from .children import background, log
from .server import api_context
from .settings import Settings

_DOMAIN = ("svc", "cluster", "local")
_PORT = 10053
_TYPE_A = 1
_TTL_S = 5
_NO_ERROR, _SERVER_FAILURE, _NO_SUCH_NAME = 0, 2, 3


def start(settings: Settings, url: str) -> None:
    """Answer the pods of this node in the background."""
    background("dns", lambda: _serve(settings, url))


def _serve(settings: Settings, url: str) -> None:
    # the comment makes k3s-killall.sh remove the rule
    rule = ["PREROUTING", "-d", f"{settings.service(10)}/32", "-p", "udp", "--dport", "53",
            "-m", "comment", "--comment", "flanneld DNS", "-j", "REDIRECT", "--to-ports", str(_PORT)]  # fmt: skip
    if subprocess.run(["iptables", "-w", "-t", "nat", "-C", *rule], capture_output=True, check=False).returncode:
        subprocess.run(["iptables", "-w", "-t", "nat", "-I", *rule], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", _PORT))
        log(f"names of Services are answered at {settings.service(10)}")
        while True:
            question, client = server.recvfrom(4096)
            server.sendto(answer(question, lambda name, space: _addresses(settings, url, name, space)), client)


def _get(settings: Settings, address: str) -> list[dict[str, Any]]:
    context = api_context(settings.agent / "server-ca.crt", pki.Pair(settings.agent / "client-kube-proxy"))
    with urllib.request.urlopen(address, context=context, timeout=5) as reply:
        return list(json.load(reply)["items"])


def _addresses(settings: Settings, url: str, name: str, space: str) -> list[str] | None:
    """Return the cluster's address of a Service, or those of its pods if it has none; None if there is no Service."""
    where, only = urllib.parse.quote(space), urllib.parse.quote(name)
    found = _get(settings, f"{url}/api/v1/namespaces/{where}/services?fieldSelector=metadata.name%3D{only}")
    if not found:
        return None
    if found[0]["spec"]["clusterIP"] != "None":
        return [found[0]["spec"]["clusterIP"]]
    slices = f"{url}/apis/discovery.k8s.io/v1/namespaces/{where}/endpointslices"
    every = _get(settings, f"{slices}?labelSelector=kubernetes.io%2Fservice-name%3D{only}")
    ends = [end for part in every for end in part.get("endpoints") or [] if end["conditions"].get("ready")]
    return [address for end in ends for address in end["addresses"]]


def answer(question: bytes, addresses: Any) -> bytes:
    """Return the answer to a query (RFC 1035) with one question; ``addresses`` is called with a Service's names."""
    number = struct.unpack("!H", question[:2])[0]
    labels, position = [], 12
    while length := question[position]:
        labels.append(question[position + 1 : position + 1 + length].decode().lower())
        position += 1 + length
    asked = question[12 : position + 5]
    kind = struct.unpack("!H", asked[-4:-2])[0]
    try:
        found = addresses(labels[0], labels[1]) if len(labels) == 5 and tuple(labels[2:]) == _DOMAIN else None
        status = _NO_SUCH_NAME if found is None else _NO_ERROR
    except OSError as error:
        log(f"dns: {error}")
        found, status = None, _SERVER_FAILURE
    records = [
        struct.pack("!HHHIH", 0xC00C, _TYPE_A, 1, _TTL_S, 4) + ipaddress.ip_address(address).packed
        for address in found or []
        if kind == _TYPE_A
    ]
    # a response, authoritative, recursion desired and available
    header = struct.pack("!HHHHHH", number, 0x8580 | status, 1, len(records), 0, 0)
    return header + asked + b"".join(records)
