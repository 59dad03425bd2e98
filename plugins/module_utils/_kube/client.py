# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the Kubernetes API of one context with plain JSON and ClusterError."""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ansible.module_utils.basic import missing_required_lib

from .._common.findings import cut
from .kubeconfig import kubectl

try:
    import kubernetes
    import kubernetes.dynamic
    import kubernetes.stream.ws_client
    import urllib3

    MISSING = ""
except ImportError:
    MISSING = missing_required_lib("kubernetes")

# What went wrong at the Kubernetes API: what was tried, why it failed, and the remedy.

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
_REMEDIES = {
    0: "Check that the API server runs and that this machine reaches it",
    401: "Renew the credentials in the kubeconfig; with K3s of this collection, playbook kubernetes writes them again",
    403: "Give the kubeconfig's user this permission",
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
def explained(what: str, kubeconfig: str | None = None) -> Iterator[None]:
    """Convert the client's exceptions to ClusterError, without headers; ``what`` is a verb phrase.

    Of the API's answer, only the message about a missing right is quoted.
    """
    try:
        yield
    except kubernetes.config.ConfigException as error:
        remedy = f"Check the path and the context: {kubectl(kubeconfig, None)} config get-contexts"
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


# Wait in slices, because a module can show nothing before it ends.
#
# The action pods_wait runs the module again until a slice is the last one, and shows the message of every slice.

SLICE_SECONDS = 20
_FIRST_PAUSE = 0.125
PROGRESS_SPEC: dict[str, Any] = {"type": "dict", "default": {}}
"""Argument spec of the option ``progress`` of modules that wait in slices."""

_T = TypeVar("_T")


def poll(look: Callable[[], _T], enough: Callable[[_T], bool], seconds: float, pause: float) -> _T:
    """Return what ``look`` returns once it is enough, or when the time is over. It looks at least once.

    The first pauses are shorter: most waits are over in a fraction of a second. ``pause`` is the longest.
    """
    deadline, next_pause = time.monotonic() + seconds, min(pause, _FIRST_PAUSE)
    while True:
        found = look()
        left = deadline - time.monotonic()
        if enough(found) or left <= 0:
            return found
        time.sleep(min(next_pause, left))
        next_pause = min(pause, 2 * next_pause)


class Slice:
    """One slice of a wait of ``timeout`` seconds; ``progress`` is what the slice before it returned."""

    def __init__(self, timeout: float, progress: Mapping[str, Any]) -> None:
        self._timeout, self._before = timeout, float(progress.get("waited", 0))
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return how long this slice may take."""
        return min(SLICE_SECONDS, max(0.0, self._timeout - self._before))

    @property
    def waited(self) -> float:
        """Return how long all slices took so far."""
        return self._before + time.monotonic() - self._started

    @property
    def last(self) -> bool:
        """Return whether the time is over."""
        return self.waited >= self._timeout


Json = dict[str, Any]
_R = TypeVar("_R")

# Seconds that connecting to the API, and its answer to a list request, may take.
_TIMEOUT = (5, 60)
_LEASES = "coordination.k8s.io/v1/leases"


class Ran(NamedTuple):
    """The result of a command in a pod."""

    status: int
    stdout: str
    stderr: str


def at_once(call: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    """Return what ``call`` returns for each item, in their order; up to 16 calls run at the same time."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(call, items))


class Cluster:
    """The requests that this collection's modules make; every method raises ClusterError."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        if MISSING:
            raise ClusterError(MISSING)
        self.kubectl = kubectl(kubeconfig, context)
        what = f"use context {context or '(the current one)'} of kubeconfig {kubeconfig or '(the default)'}"
        with explained(what, kubeconfig):
            self._client = kubernetes.config.new_client_from_config(config_file=kubeconfig, context=context)
        # Only the request of this client is used, so the kinds of the API need not be read. The classes for the kinds
        # take longer to import (0.3 s) than all requests of most modules.
        self._plain = kubernetes.dynamic.DynamicClient(self._client, discoverer=lambda _client, _file: None)

    def objects(self, resource: str, namespace: str = "", name: str = "", selector: str = "") -> list[Json]:
        """Return objects of a resource such as ``apps/v1/statefulsets``: all that match the selector, or the named one.

        The list is empty if the API does not know the resource.
        """
        with tolerated(NOT_FOUND):
            if name:
                return [self._read(f"read {resource} {name}", resource, namespace, name)]
            what = f"list {resource}{f' of namespace {namespace}' if namespace else ''}"
            return self._items(what, resource, namespace, selector)
        return []

    def pods(self, namespace: str, selector: str) -> list[Json]:
        """Return the pods of a namespace that match a label selector."""
        return self._items(f"list the pods of namespace {namespace}", "v1/pods", namespace, selector)

    def all_pods(self) -> list[Json]:
        """Return the pods of all namespaces."""
        return self._items("list the pods of all namespaces", "v1/pods")

    def nodes(self) -> list[Json]:
        """Return the nodes."""
        return self._items("list the nodes", "v1/nodes")

    def version(self) -> str:
        """Return the version of the API server."""
        return str(self._get("read the version of the API server", "/version")["gitVersion"])

    def api_groups(self) -> list[str]:
        """Return the names of the API groups."""
        return [group["name"] for group in self._get("list the API groups", "/apis")["groups"]]

    def warnings(self, namespace: str) -> list[Json]:
        """Return the Warning events of a namespace."""
        what = f"list the events of namespace {namespace}"
        return self._items(what, "v1/events", namespace, field_selector="type=Warning")

    def create_pod(self, namespace: str, pod: Any) -> None:
        """Create a pod, unless one of its name exists."""
        with tolerated(CONFLICT):
            self._call(f"create pod {pod['metadata']['name']}", "POST", _path("v1/pods", namespace), body=pod)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod, if it exists."""
        with tolerated(NOT_FOUND):
            self._call(f"delete pod {name}", "DELETE", f"{_path('v1/pods', namespace)}/{name}")

    def config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return the data of a ConfigMap; empty if it does not exist."""
        with tolerated(NOT_FOUND):
            return dict(self._read(f"read ConfigMap {name}", "v1/configmaps", namespace, name).get("data") or {})
        return {}

    def add_to_config_map(self, namespace: str, name: str, data: dict[str, str]) -> None:
        """Add data to a ConfigMap, or create it."""
        body, maps = {"metadata": {"name": name}, "data": data}, _path("v1/configmaps", namespace)
        with tolerated(NOT_FOUND):
            kind = "application/merge-patch+json"
            self._call(f"write ConfigMap {name}", "PATCH", f"{maps}/{name}", body=body, content_type=kind)
            return
        self._call(f"create ConfigMap {name}", "POST", maps, body=body)

    def read_lease(self, namespace: str, name: str) -> Json:
        """Return a Lease; empty if it does not exist."""
        with tolerated(NOT_FOUND):
            return self._read(f"read Lease {name} of namespace {namespace}", _LEASES, namespace, name)
        return {}

    def write_lease(self, namespace: str, lease: Json) -> None:
        """Create a Lease, or replace the one whose version it names; CONFLICT if another request was earlier."""
        name, leases = lease["metadata"]["name"], _path(_LEASES, namespace)
        if "resourceVersion" in lease["metadata"]:
            self._call(f"take Lease {name} of namespace {namespace}", "PUT", f"{leases}/{name}", body=lease)
        else:
            self._call(f"create Lease {name} in namespace {namespace}", "POST", leases, body=lease)

    def delete_lease(self, namespace: str, name: str, version: str) -> None:
        """Delete a Lease if it still has this version."""
        body = {"preconditions": {"resourceVersion": version}}
        with tolerated(NOT_FOUND, CONFLICT):
            self._call(f"delete Lease {name}", "DELETE", f"{_path(_LEASES, namespace)}/{name}", body=body)

    def daemon_set(self, namespace: str, name: str) -> Json:
        """Return a DaemonSet."""
        return self._read(f"read DaemonSet {name} of namespace {namespace}", "apps/v1/daemonsets", namespace, name)

    def events(self, namespace: str) -> list[Json]:
        """Return all events of a namespace."""
        return self._items(f"list the events of namespace {namespace}", "v1/events", namespace)

    def log_end(self, namespace: str, pod: str, container: str, lines: int, previous: bool = False) -> list[str]:
        """Return the last lines of a container's log; empty if the kubelet no longer has the log."""
        with self.open_log(namespace, pod, container, tail_lines=lines, previous=previous) as read:
            text = b"".join(iter(lambda: read(1 << 20), b"")).decode("utf-8", "replace")
        # The kubelet answers 200 with this text when it no longer has the container's log.
        return [] if text.startswith("unable to retrieve container logs") else text.splitlines()

    @contextmanager
    def open_log(
        self, namespace: str, pod: str, container: str, tail_lines: int = 0, previous: bool = False
    ) -> Iterator[Callable[[int], bytes]]:
        """Yield ``read(n)`` on a container's log; the log is loaded in the pieces that are read. 0 sets no limit."""
        what, path = f"read the log of pod {pod}", f"{_path('v1/pods', namespace)}/{pod}/log"
        wanted = {"tailLines": tail_lines, "previous": str(previous).lower()}
        query = [("container", container), *((key, value) for key, value in wanted.items() if value)]
        with explained(what):
            response: Any = self._plain.request("GET", path, serialize=False, query_params=query)

        def read(size: int) -> bytes:
            with explained(what):
                return bytes(response.read(size))

        try:
            yield read
        finally:
            response.close()
            response.release_conn()

    def stream(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: list[str],
        waiting: Callable[[], None] = lambda: None,
    ) -> Iterator[bytes]:
        """Start a command in a pod, and return an iterator over the pieces of its output.

        ``waiting`` is called every few seconds until the command ends.
        """
        what = f"run a command in pod {pod}"
        with explained(what):
            channel = self._channel(namespace, pod, container, command, stderr=False)
        return self._pieces(what, channel, waiting)

    def _pieces(self, what: str, channel: Any, waiting: Callable[[], None]) -> Iterator[bytes]:
        with explained(what):
            while channel.is_open():
                channel.update(timeout=5)
                waiting()
                if piece := channel.read_stdout(timeout=0):
                    yield piece.encode()
            if rest := channel.read_stdout(timeout=0):
                yield rest.encode()
            channel.close()

    def run(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: list[str],
        waiting: Callable[[], None] = lambda: None,
    ) -> Ran:
        """Run a command in a pod to its end; ``waiting`` is called every few seconds until then."""
        with explained(f"run a command in pod {pod}"):
            channel = self._channel(namespace, pod, container, command, stderr=True)
            while channel.is_open():
                channel.update(timeout=5)
                waiting()
            ran = Ran(channel.returncode, channel.read_stdout(timeout=0), channel.read_stderr(timeout=0))
            channel.close()
        return ran

    def _channel(self, namespace: str, pod: str, container: str, command: list[str], stderr: bool) -> Any:
        configuration = self._client.configuration
        streams = {"stdin": "false", "stdout": "true", "stderr": str(stderr).lower(), "tty": "false"}
        return kubernetes.stream.ws_client.websocket_call(
            configuration,
            "GET",
            f"{configuration.host}{_path('v1/pods', namespace)}/{pod}/exec",
            query_params=[("container", container), *(("command", word) for word in command), *streams.items()],
            headers={key["key"]: key["value"] for key in configuration.auth_settings().values()},
            _preload_content=False,
        )

    def _items(self, what: str, resource: str, namespace: str = "", selector: str = "", **options: str) -> list[Json]:
        options |= {"label_selector": selector} if selector else {}
        found = self._get(what, _path(resource, namespace), **options)
        # The items of a list do not name their kind.
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [kind | item for item in found["items"]]

    def _read(self, what: str, resource: str, namespace: str, name: str) -> Json:
        return self._get(what, f"{_path(resource, namespace)}/{name}")

    def _get(self, what: str, path: str, **options: str) -> Json:
        return self._call(what, "GET", path, **options)

    def _call(self, what: str, method: str, path: str, **options: Any) -> Json:
        with explained(what):
            response = self._plain.request(method, path, serialize=False, _request_timeout=_TIMEOUT, **options)
            return dict(json.loads(response.data))


def _path(resource: str, namespace: str) -> str:
    """Return the path of a resource such as ``apps/v1/statefulsets``, of all namespaces if none is given."""
    version, _slash, plural = resource.rpartition("/")
    words = ["apis" if "/" in version else "api", version, *(["namespaces", namespace] if namespace else []), plural]
    return "/" + "/".join(words)
