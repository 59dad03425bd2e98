# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the Kubernetes API of one context with plain JSON and ClusterError."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ansible.module_utils.basic import missing_required_lib

try:
    import kubernetes
    import kubernetes.stream
    import urllib3

    MISSING = ""
except ImportError:
    MISSING = missing_required_lib("kubernetes")

Json = dict[str, Any]

# Seconds that connecting to the API, and its answer to a list request, may take.
_TIMEOUT = (5, 60)
FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
_REMEDIES = {
    0: "Check that the API server runs and that this machine reaches it: kubectl cluster-info",
    401: "Renew the credentials in the kubeconfig; playbook kubernetes writes them again",
    403: "Give the kubeconfig's user this permission; kubectl auth can-i --list shows those that it has",
    404: "Check that it exists; it may have been deleted meanwhile",
}


class ClusterError(Exception):
    """The failed action, its reason and the remedy; ``status`` is the HTTP status, 0 without an answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Ran(NamedTuple):
    """The result of a command in a pod."""

    status: int
    stdout: str
    stderr: str


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
        raise ClusterError(f"{text}. {_REMEDIES.get(status, 'Look at the log of the API server')}", status) from error
    except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
        raise ClusterError(f"can't {what}: {type(error).__name__}: {_first_line(error)}. {_REMEDIES[0]}") from error


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
    return str(error).strip().partition("\n")[0][:300].rstrip(".")


class Cluster:
    """The requests that this collection's modules make; every method raises ClusterError."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        if MISSING:
            raise ClusterError(MISSING)
        with explained(f"use context {context or '(the current one)'} of kubeconfig {kubeconfig or '(the default)'}"):
            self._client = kubernetes.config.new_client_from_config(config_file=kubeconfig, context=context)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._apps = kubernetes.client.AppsV1Api(self._client)

    def pods(self, namespace: str, selector: str) -> list[Json]:
        """Return the pods of a namespace that match a label selector."""
        what = f"list the pods of namespace {namespace}"
        return self._items(what, self._core.list_namespaced_pod, namespace, label_selector=selector)

    def all_pods(self) -> list[Json]:
        """Return the pods of all namespaces."""
        return self._items("list the pods of all namespaces", self._core.list_pod_for_all_namespaces)

    def nodes(self) -> list[Json]:
        """Return the nodes."""
        return self._items("list the nodes", self._core.list_node)

    def version(self) -> str:
        """Return the version of the API server."""
        with explained("read the version of the API server"):
            api = kubernetes.client.VersionApi(self._client)
            response: Any = api.get_code(_preload_content=False, _request_timeout=_TIMEOUT)
            return str(json.loads(response.data)["gitVersion"])

    def api_groups(self) -> list[str]:
        """Return the names of the API groups."""
        with explained("list the API groups"):
            api = kubernetes.client.ApisApi(self._client)
            response: Any = api.get_api_versions(_preload_content=False, _request_timeout=_TIMEOUT)
            return [group["name"] for group in json.loads(response.data)["groups"]]

    def daemon_sets(self) -> list[Json]:
        """Return the DaemonSets of all namespaces."""
        return self._items("list the DaemonSets of all namespaces", self._apps.list_daemon_set_for_all_namespaces)

    def runtime_classes(self) -> list[Json]:
        """Return the runtime classes."""
        return self._items("list the runtime classes", kubernetes.client.NodeV1Api(self._client).list_runtime_class)

    def storage_classes(self) -> list[Json]:
        """Return the storage classes."""
        return self._items("list the storage classes", kubernetes.client.StorageV1Api(self._client).list_storage_class)

    def ingress_classes(self) -> list[Json]:
        """Return the ingress classes."""
        return self._items(
            "list the ingress classes", kubernetes.client.NetworkingV1Api(self._client).list_ingress_class
        )

    def namespace(self, name: str) -> Json:
        """Return a namespace."""
        with explained(f"read namespace {name}"):
            response: Any = self._core.read_namespace(name, _preload_content=False, _request_timeout=_TIMEOUT)
            return dict(json.loads(response.data))

    def namespace_annotations(self, namespace: str) -> dict[str, str]:
        """Return the annotations of a namespace; empty if it does not exist."""
        with tolerated(NOT_FOUND):
            return dict(self.namespace(namespace)["metadata"].get("annotations") or {})
        return {}

    def warnings(self, namespace: str) -> list[Json]:
        """Return the Warning events of a namespace."""
        what = f"list the events of namespace {namespace}"
        return self._items(what, self._core.list_namespaced_event, namespace, field_selector="type=Warning")

    def create_pod(self, namespace: str, pod: Any) -> None:
        """Create a pod, unless one of its name exists."""
        with tolerated(CONFLICT), explained(f"create pod {pod['metadata']['name']}"):
            self._core.create_namespaced_pod(namespace, pod, _preload_content=False, _request_timeout=_TIMEOUT)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod, if it exists."""
        with tolerated(NOT_FOUND), explained(f"delete pod {name}"):
            self._core.delete_namespaced_pod(name, namespace, _preload_content=False, _request_timeout=_TIMEOUT)

    def config_map(self, namespace: str, name: str) -> dict[str, str]:
        """Return the data of a ConfigMap; empty if it does not exist."""
        with tolerated(NOT_FOUND), explained(f"read ConfigMap {name}"):
            response: Any = self._core.read_namespaced_config_map(
                name, namespace, _preload_content=False, _request_timeout=_TIMEOUT
            )
            return dict(json.loads(response.data).get("data") or {})
        return {}

    def add_to_config_map(self, namespace: str, name: str, data: dict[str, str]) -> None:
        """Add data to a ConfigMap, or create it."""
        body: Any = {"metadata": {"name": name}, "data": data}
        options: dict[str, Any] = {"_preload_content": False, "_request_timeout": _TIMEOUT}
        with tolerated(NOT_FOUND), explained(f"write ConfigMap {name}"):
            self._core.patch_namespaced_config_map(name, namespace, body, **options)
            return
        with explained(f"create ConfigMap {name}"):
            self._core.create_namespaced_config_map(namespace, body, **options)

    def daemon_set(self, namespace: str, name: str) -> Json:
        """Return a DaemonSet."""
        with explained(f"read DaemonSet {name} of namespace {namespace}"):
            response: Any = self._apps.read_namespaced_daemon_set(
                name, namespace, _preload_content=False, _request_timeout=_TIMEOUT
            )
            return dict(json.loads(response.data))

    def events(self, namespace: str) -> list[Json]:
        """Return all events of a namespace."""
        return self._items(f"list the events of namespace {namespace}", self._core.list_namespaced_event, namespace)

    def log_end(self, namespace: str, pod: str, container: str, lines: int, previous: bool = False) -> list[str]:
        """Return the last lines of a container's log; empty if the kubelet no longer has the log."""
        with self.open_log(namespace, pod, container, tail_lines=lines, previous=previous) as read:
            text = b"".join(iter(lambda: read(1 << 20), b"")).decode("utf-8", "replace")
        # The kubelet answers 200 with this text when it no longer has the container's log.
        return [] if text.startswith("unable to retrieve container logs") else text.splitlines()

    @contextmanager
    def open_log(self, namespace: str, pod: str, container: str, **options: Any) -> Iterator[Callable[[int], bytes]]:
        """Yield ``read(n)`` on a container's log; the log is loaded in the pieces that are read."""
        what = f"read the log of pod {pod}"
        with explained(what):
            response: Any = self._core.read_namespaced_pod_log(
                pod, namespace, container=container, _preload_content=False, **options
            )

        def read(size: int) -> bytes:
            with explained(what):
                return bytes(response.read(size))

        try:
            yield read
        finally:
            response.close()
            response.release_conn()

    def stream(self, namespace: str, pod: str, container: str, command: list[str]) -> Iterator[bytes]:
        """Run a command in a pod and yield its output in pieces."""
        with explained(f"run a command in pod {pod}"):
            channel = self._channel(namespace, pod, container, command, stderr=False)
            while channel.is_open():
                channel.update(timeout=5)
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
        # stream() turns the client that it is given into a web-socket client, so it gets a separate one.
        own = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(self._client.configuration))
        return kubernetes.stream.stream(
            own.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=container,
            command=command,
            stdout=True,
            stderr=stderr,
            stdin=False,
            tty=False,
            _preload_content=False,
        )

    def _items(self, what: str, call: Callable[..., Any], *words: str, **options: str) -> list[Json]:
        with explained(what):
            response = call(*words, _preload_content=False, _request_timeout=_TIMEOUT, **options)
            return list(json.loads(response.data)["items"])
