# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that whoever reaches a port gets what the port is for. The code says which fields of a request it reads."""

import ast
import runpy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from seen import Seen

ROOT = Path(__file__).resolve().parents[3]
DOOR = "roles/sglang/files/front_door.py"
FRONT = runpy.run_path(str(ROOT / DOOR))
POD, VF, CLIENT = "10.42.0.5", "10.100.0.1", "10.42.0.9"
# What answers requests, and who tries each field that it reads. test_front_door.py tries the door in a real server.
TRIED = {
    DOOR: dict.fromkeys(("type", "client", "server", "path", "method"), "test_what_passes_the_door"),
    "plugins/module_utils/_models/share.py": {
        "path": "test_nothing_else_is_sent",
        "Authorization": "test_another_token_is_refused",
        "Range": "test_a_file_is_sent_whole_or_from_an_offset",
        "client_address": "test_another_address_gets_no_answer",
    },
    "plugins/module_utils/_pod/api.py": {
        "path": "test_the_pulse_stops_when_no_round_has_ended_for_a_while",
        "client_address": "test_a_page_is_for_the_pods_own_network_and_the_pod",
    },
}
FIELDS = {"path", "command", "requestline", "raw_requestline", "rfile", "client_address"}


def read_by(text: str) -> set[str]:
    """Return the fields of a request that a handler reads."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and node.attr in FIELDS:
            found.add(node.attr)
        elif isinstance(node, ast.arg) and node.arg in FIELDS:
            found.add(node.arg)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.headers.get":
            found.add(ast.literal_eval(node.args[0]))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.headers":
            found.add(ast.literal_eval(node.slice))
    return found


# The pod's own network, a VF, another pod, and forms of these.
ENDS = [None, *((each, 1) for each in (POD, VF, CLIENT, f"::ffff:{POD}", f"::ffff:{VF}", f"{POD}%net1", "", "x"))]
PATHS = [
    "/v1/models",
    "/v1/../flush_cache",
    "/v1",
    "/flush_cache",
    "//flush_cache",
    "/FLUSH_CACHE",
    "/health",
    "",
    "\0",
]


def passes(scope: Seen) -> bool:
    """Return whether a request gets through the door; what is answered at the door is a refusal."""
    passed: list[Any] = []
    sent: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        passed.append(scope)

    async def send(message: Any) -> None:
        sent.append(message)

    # It waits for nothing else, so it ends at once.
    with pytest.raises(StopIteration):
        FRONT["Door"](app, frozenset({POD}))(scope, None, send).send(None)
    refused = sent and (sent[0] == {"type": "websocket.close", "code": 1008} or sent[0]["status"] == 403)
    assert bool(passed) is not bool(refused)
    return bool(passed)


@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_what_passes_the_door(path: str) -> None:
    """Another pod gets what generates and reports, at the pod's address alone; a process of the pod, more by POST."""
    for client, server, method in product(ENDS, ENDS, ("GET", "HEAD", "POST", "DELETE", None)):
        kind = {"type": "http", "method": method} if method else {"type": "websocket"}
        came, reached = (end[0].removeprefix("::ffff:").partition("%")[0] if end else "" for end in (client, server))
        local, public = came == reached and reached not in ("", "x"), path in ("/v1/models", "/health")
        right = (local and (public or method in ("POST", "DELETE"))) or (reached == POD and public)
        assert passes(Seen(client=client, server=server, path=path, **kind)) is right, (client, server, method)


def test_each_field_of_a_request_that_is_read_has_a_test() -> None:
    request = Seen(type="http", client=(CLIENT, 1), server=(POD, 1), path="/", method="GET")
    passes(request)
    sources = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("roles/*/files/*.py")]
    written = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sources}
    handlers = {name: read_by(text) for name, text in written.items() if "BaseHTTPRequestHandler)" in text}
    assert {DOOR: request.read, **handlers} == {name: set(fields) for name, fields in TRIED.items()}
    servers = {name for name, text in written.items() if "loaded_app" in text or "serve_forever" in text}
    assert servers == set(TRIED)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/unit").rglob("test_*.py"))
    assert [test for fields in TRIED.values() for test in fields.values() if f"def {test}(" not in tests] == []
