# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated Kubernetes API with the names of the real client."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import kubernetes.dynamic
import kubernetes.stream.ws_client
import pytest

Json = dict[str, Any]
# Result of a command in a pod: exit status, standard output, standard error.
Ran = tuple[int, str, str]


class Response(io.BytesIO):
    """A response of the client with ``_preload_content=False``."""

    @property
    def data(self) -> bytes:
        return self.getvalue()

    def release_conn(self) -> None:
        assert self.closed, "the next request would read what is left of this answer"


class Channel:
    """A web socket with the complete output of a command."""

    def __init__(self, ran: Ran) -> None:
        self.returncode, self._out, self._err = ran
        self._open = True

    def is_open(self) -> bool:
        return self._open

    def update(self, timeout: float | None = None) -> None:
        del timeout
        self._open = False

    def read_stdout(self, timeout: float) -> str:
        del timeout
        text, self._out = self._out, ""
        return text

    def read_stderr(self, timeout: float) -> str:
        del timeout
        return self._err

    def close(self) -> None:
        self._open = False


def pod(name: str, labels: dict[str, str] | None = None) -> Json:
    """Return a pod with the containers of a rank."""
    containers = [{"name": "sglang"}, {"name": "sidecar"}]
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": containers}}


def _listed(kind: str, items: list[Json] | Exception) -> Json | Exception:
    return items if isinstance(items, Exception) else {"kind": f"{kind}List", "apiVersion": "v1", "items": items}


def _next_text(texts: list[str] | Exception) -> str:
    if isinstance(texts, Exception):
        raise texts
    return texts.pop(0) if len(texts) > 1 else texts[0]


@dataclass
class FakeApi:
    """Pods, nodes, events, logs, files and commands. If a pod has a list of logs, each reading returns the next one.

    ``files`` is the output of the script of ``PodContainer.open_files``; ``asked`` has all requests in order. An answer
    that is an exception is raised. ``objects`` has the answers of the API by path, those of other methods than GET by
    method and path.
    """

    pods: list[Json] | Exception = field(default_factory=list)
    nodes: list[Json] = field(default_factory=list)
    daemon_sets: dict[str, Json] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    logs: dict[str, list[str] | Exception] = field(default_factory=dict)
    files: dict[str, list[str] | Exception] = field(default_factory=dict)
    objects: dict[str, Json | Exception] = field(default_factory=dict)
    command: Callable[[str, list[str]], Ran] = lambda _pod, _command: (0, "", "")
    asked: list[Json] = field(default_factory=list)

    def request(self, method: str, path: str, serialize: bool = True, **options: Any) -> Response:
        assert not serialize, "the client would return an object of its own instead of the response"
        if path.endswith("/log"):
            name, query = path.split("/")[-2], dict(options["query_params"])
            self.asked.append({"pod": name, **query})
            return Response(_next_text(self.logs[name]).encode())
        if method != "GET":
            self.asked.append({"method": method, "path": path, "body": options.get("body")})
        key = path if method == "GET" else f"{method} {path}"
        answer = self.objects.get(key) or (self._answer(path, options.get("label_selector", "")) if key == path else {})
        if isinstance(answer, Exception):
            raise answer
        return Response(json.dumps(answer).encode())

    def _answer(self, path: str, selector: str) -> Json | Exception:
        words = path.split("/")
        match words[words.index("v1") + 1 :]:
            case ["pods"]:
                return _listed("Pod", self.pods)
            case ["namespaces", namespace, "pods"]:
                self.asked.append({"namespace": namespace, "label_selector": selector})
                return _listed("Pod", self.pods)
            case ["nodes"]:
                return _listed("Node", self.nodes)
            case ["namespaces", _namespace, "events"]:
                return _listed("Event", self.events)
            case ["namespaces", _namespace, "daemonsets", name] if name in self.daemon_sets:
                return self.daemon_sets[name]
        return kubernetes.client.ApiException(status=404, reason="Not Found")

    def websocket_call(self, _configuration: Any, _method: str, url: str, **options: Any) -> Channel:
        name, query = url.split("/")[-2], options["query_params"]
        command = [value for key, value in query if key == "command"]
        self.asked.append({"pod": name, "container": dict(query)["container"], "command": command})
        if name in self.files and "ls -tr" in " ".join(command):
            return Channel((0, _next_text(self.files[name]), ""))
        return Channel(self.command(name, command))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
        """Replace the API of every cluster by this one."""
        configuration = SimpleNamespace(host="https://none", auth_settings=dict)
        client = SimpleNamespace(configuration=configuration)
        monkeypatch.setattr(kubernetes.config, "new_client_from_config", lambda **_options: client)
        monkeypatch.setattr(kubernetes.dynamic, "DynamicClient", lambda _client, **_options: self)
        monkeypatch.setattr(kubernetes.stream.ws_client, "websocket_call", self.websocket_call)
        return self


def api_of(_place: Path, patch: pytest.MonkeyPatch, **options: Any) -> FakeApi:
    """Return an API for the cases of a module that has these options, besides those with which each reaches one."""
    api = FakeApi()
    vars(api)["options"] = {"kubeconfig": "/k", "context": "gb10", **options}
    return api.install(patch)
