# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What went wrong at the Kubernetes API: what was tried, why it failed, and the remedy."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from .._common.findings import cut

try:
    import kubernetes
    import urllib3
except ImportError:
    # Without this package there is no client either, and that says so.
    pass

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
_REMEDIES = {
    0: "Check that the API server runs and that this machine reaches it: kubectl cluster-info",
    401: "Renew the credentials in the kubeconfig; with K3s of this collection, playbook kubernetes writes them again",
    403: "Give the kubeconfig's user this permission; kubectl auth can-i --list shows those that it has",
    404: "Check that it exists; it may have been deleted meanwhile",
}
_OTHER_CA = (
    "The kubeconfig is of another cluster, perhaps before a reinstallation; with K3s of this collection, playbook"
    " kubernetes writes it again"
)


class ClusterError(Exception):
    """The failed action, its reason and the remedy; ``status`` is the HTTP status, 0 without an answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Convert the client's exceptions to ClusterError, without headers; ``what`` is a verb phrase.

    Of the API's answer, only the message about a missing right is quoted.
    """
    try:
        yield
    except kubernetes.config.ConfigException as error:
        remedy = "Check the path and the context: kubectl config get-contexts"
        raise ClusterError(f"can't {what}: {_first_line(error)}. {remedy}") from error
    except kubernetes.client.ApiException as error:
        # For a refused web socket, only the text contains the status.
        found = re.match(r"Handshake status (\d+) ([\w ]+)", str(error.reason or ""))
        status, reason = (int(found[1]), found[2]) if found else (error.status or 0, error.reason)
        text = f"can't {what} ({f'{status}: ' if status else ''}{_first_line(reason)})"
        if status == FORBIDDEN:
            text = f"{text}: {_message(error.body or _body_of_handshake(str(error.reason)))}".removesuffix(": ")
        raise ClusterError(f"{text}. {_remedy(status, error)}", status) from error
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
        text = f"can't {what}: {type(error).__name__}: {_first_line(error)}"
        raise ClusterError(f"{text}. {_remedy(0, error)}") from error


def _remedy(status: int, error: Exception) -> str:
    if not status and "certificate verify failed" in str(error).lower():
        return _OTHER_CA
    return _REMEDIES.get(status, "Look at the log of the API server")


@contextmanager
def tolerated(*statuses: int) -> Iterator[None]:
    """Leave the block, without an exception, at a ClusterError with one of these HTTP statuses."""
    try:
        yield
    except ClusterError as error:
        if error.status not in statuses:
            raise


def _message(body: object) -> str:
    """Return the message in the API's answer; for a missing right it names verb, resource and namespace."""
    try:
        return _first_line(json.loads(str(body.decode() if isinstance(body, bytes) else body))["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _body_of_handshake(reason: str) -> bytes:
    """Return the answer to a refused web socket, which the client has only as the text of a bytes object."""
    text = reason.rpartition("-+-+- ")[2]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return b""
    return found if isinstance(found, bytes) else b""


def _first_line(error: object) -> str:
    return cut(str(error).strip().partition("\n")[0], 300).rstrip(".")
