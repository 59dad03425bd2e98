# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes API as a program in a pod reaches it. Private to the collection; standard library only."""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# Where Kubernetes puts the token of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_JSON = "application/json"
# The API refuses longer messages of events.
_LONGEST_EVENT = 1000


class InPodApi:
    """Calls the API with the token in the directory ``account``; every method raises OSError or HTTPException.

    ``timeout`` is in seconds. ``now`` is the API server's clock at its last answer, in seconds since 1970.
    """

    def __init__(self, namespace: str, timeout: float, account: Path = ACCOUNT) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._account, self._timeout, self.namespace = account, timeout, namespace
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))
        self.now = 0.0

    def core(self, path: str) -> str:
        """Return the path of an object of the core API in the namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{path}"

    def read(self, method: str, path: str, body: Json | None = None, kind: str = _JSON) -> bytes:
        """Send a request with a body of media type ``kind``, and return the answer."""
        # The token is rotated on disk, so it is read for every request.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with self._opener.open(request, timeout=self._timeout) as answer:
            self.now = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            return bytes(answer.read())

    def call(self, method: str, path: str, body: Json | None = None, kind: str = _JSON) -> Json:
        """Send a request, and return the object in the answer."""
        return dict(json.loads(self.read(method, path, body, kind)))

    def find(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """Send a request about an object, and return the answer, or None if the object does not exist."""
        try:
            return self.call(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def record_event(self, about: Json, reason: str, message: str, warning: bool, component: str) -> None:
        """Record an event about an object, given as ``{apiVersion, kind, name, namespace}``."""
        when = timestamp()
        event = {
            "metadata": {"generateName": f"{about['name']}-{component.rpartition('/')[2]}-"},
            "involvedObject": about,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:_LONGEST_EVENT],
            "source": {"component": component},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        self.call("POST", self.core("events"), event)


def timestamp(seconds: float | None = None) -> str:
    """Return a time, by default now, in the form of the API."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
