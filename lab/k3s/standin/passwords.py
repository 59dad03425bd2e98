# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep node passwords as K3s does, so that nobody with the agent token gets the certificate of another node.

A node creates its password once, in ``/etc/rancher/node/password``. The first join stores a hash of it in the Secret
``<node>.node-password.k3s``. Every later join under that name has to bring the same password. The finalizer of the
Node object makes sure that the Secret is removed together with the node.
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.request
from pathlib import Path
from ssl import SSLContext
from typing import Any

from .children import background
from .pki import write_private
from .settings import StandInError

FILE = Path("/etc/rancher/node/password")
FINALIZER = "wrangler.cattle.io/node"
_SECRETS = "/api/v1/namespaces/kube-system/secrets"
_NOT_FOUND = 404
_CONFLICT = 409


def own() -> str:
    """Return this node's password; create it at the first start."""
    if not FILE.exists():
        write_private(FILE, secrets.token_hex(16))
    return FILE.read_text()


def hashed(password: str, salt: str) -> str:
    """Return what the Secret holds: version, salt and the scrypt hash."""
    digest = hashlib.scrypt(password.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=1)
    return f"$1:{salt}:14:8:1:{base64.b64encode(digest).decode()}"


class Passwords:
    """The Secrets and finalizers of a cluster, changed through a server's own API."""

    def __init__(self, url: str, context: SSLContext) -> None:
        self._url, self._context = url, context

    def require(self, node: str, password: str) -> None:
        """Accept the first password of a node. Raise StandInError for any other one, in K3s's words."""
        name = f"{node}.node-password.k3s"
        try:
            known = base64.b64decode(self._ask("GET", f"{_SECRETS}/{name}")["data"]["hash"]).decode()
        except urllib.error.HTTPError as error:
            if error.code != _NOT_FOUND:
                raise
            fresh = base64.b64encode(hashed(password, secrets.token_hex(8)).encode()).decode()
            self._ask("POST", _SECRETS, {"metadata": {"name": name}, "immutable": True, "data": {"hash": fresh}})
            return
        if not hmac.compare_digest(known, hashed(password, known.split(":")[1])):
            raise StandInError(
                f"Node password rejected, duplicate hostname or contents of '{FILE}' may not match server node-passwd"
                " entry, try enabling a unique node name with the --with-node-id flag"
            )

    def follow(self) -> None:
        """Keep the finalizer on every node, and remove the Secret of a deleted node, in the background."""
        background("nodes", self._follow)

    def _follow(self) -> None:
        while True:
            for node in self._ask("GET", "/api/v1/nodes")["items"]:
                self._finalize(node)
            time.sleep(1)

    def _finalize(self, node: dict[str, Any]) -> None:
        meta = node["metadata"]
        held, leaving = meta.get("finalizers", []), "deletionTimestamp" in meta
        if (FINALIZER in held) != leaving:
            return
        try:
            if leaving:
                self._ask("DELETE", f"{_SECRETS}/{meta['name']}.node-password.k3s", allowed=_NOT_FOUND)
            wanted = [name for name in held if name != FINALIZER] if leaving else [*held, FINALIZER]
            patch = {"metadata": {"finalizers": wanted, "resourceVersion": meta["resourceVersion"]}}
            self._ask("PATCH", f"/api/v1/nodes/{meta['name']}", patch)
        except urllib.error.HTTPError as error:
            # another server or the node changed the object first; the next round reads it again
            if error.code not in {_NOT_FOUND, _CONFLICT}:
                raise

    def _ask(self, method: str, path: str, body: Any = None, allowed: int = 0) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code != allowed:
                raise
            return {}
