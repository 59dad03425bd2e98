# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the door with a real uvicorn: addresses of the loopback network play the pod's own one, a VF and clients."""

import asyncio
import http.client
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import POD_ADDRESSES
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import SUSPECT
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import PUBLISHED
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import own_addresses

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/front_door.py"
CATALOGUES = sorted((FILE.parents[3] / "plugins/profiles/catalogue").glob("*.json"))
OLLAMA = ("chat", "generate", "show", "tags")
POD, VF, CLIENT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
SERVER = '''
"""A server that answers every path with its own name, in one process or in several that it spawns."""
import sys
import uvicorn

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": repr((sys.argv[1:], scope["client"][0])).encode()})

if __name__ == "__main__":
    uvicorn.run("engine:app", fd=int(sys.argv[1]), workers=int(sys.argv[2]), lifespan="off", log_level="error",
                proxy_headers=True, forwarded_allow_ips="*")
'''


@contextmanager
def server(directory: Path, workers: int, own: str) -> Iterator[int]:
    """Yield the port of a server behind the door; it listens already, so a request waits until it answers."""
    (directory / "engine.py").write_text(SERVER)
    with socket.create_server(("0.0.0.0", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        words = [sys.executable, str(FILE), "engine", str(listening.fileno()), str(workers)]
        env = {"PATH": os.environ["PATH"], "GB10_POD_IPS": own}
        child = subprocess.Popen(words, cwd=directory, env=env, pass_fds=[listening.fileno()])
        try:
            yield int(listening.getsockname()[1])
        finally:
            child.terminate()
            child.wait()


def ask(port: int, path: str, to: str, client: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(to, port, timeout=60, source_address=(client, 0))
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_pods_programs_and_door_name_one_variable() -> None:
    assert runpy.run_path(str(FILE))["ADDRESSES"] == POD_ADDRESSES == own_addresses()["name"]


PUBLIC = ["/v1/chat/completions", "/generate", "/health", "/metrics", "/server_info"]
CLOSED = ["/flush_cache", "/update_weights_from_tensor", "/start_profile", "/v1", "/generate/", "/", "//generate"]
# What an ingress may pass on, as it is or decoded, of a path that begins with one that it publishes.
CLOSED += ["/v1/../flush_cache", "/v1/%2e%2e/flush_cache", "/v1/..%2fflush_cache", "/v1/a%2F..%2f..%2Fflush_cache"]
CLOSED += ["/%66lush_cache", "/FLUSH_CACHE", "//flush_cache", "/flush_cache?/v1/", "/flush_cache;/v1/models"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_gets_what_generates_and_the_pod_itself_everything(tmp_path: Path, workers: int) -> None:
    with server(tmp_path, workers, f"{POD},fd00::2") as port:
        assert {ask(port, path, POD, CLIENT)[0] for path in PUBLIC} == {200}
        refused = [ask(port, path, POD, CLIENT) for path in CLOSED]
        assert {status for status, _text in refused} == {403}
        assert json.loads(refused[0][1])["error"]["type"] == "forbidden"
        # What proxies write about a client is a client's word, whatever the server trusts.
        forged = {"X-Forwarded-For": POD, "Forwarded": f"for={POD}"}
        assert ask(port, "/flush_cache", POD, CLIENT, **forged)[0] == 403
        assert {ask(port, path, VF, CLIENT)[0] for path in (*PUBLIC, *CLOSED)} == {403}
        assert {ask(port, path, VF, POD)[0] for path in (*PUBLIC, *CLOSED)} == {403}
        for address in (POD, "127.0.0.1"):
            assert {ask(port, path, address, address, "POST")[0] for path in (*PUBLIC, *CLOSED)} == {200}
            # The address of an image, which a client chooses and the server fetches.
            assert {ask(port, path, address, address)[0] for path in PUBLIC} == {200}
            assert {ask(port, path, address, address)[0] for path in CLOSED} == {403}


# What a client may ask of any release. A route that a new release adds belongs here only if it generates or reports.
V1 = "chat/completions classify completions decisions detokenize embeddings loads messages messages/count_tokens models"
V1 += " score audio/transcriptions models/{model:path} realtime rerank responses responses/{response_id} systemone"
ANSWERS = {f"/v1/{name}" for name in [*V1.split(), "responses/{response_id}/cancel", "tokenize"]}
ANSWERS |= {
    *PUBLIC,
    "/encode",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/open_session",
    "/close_session",
    "/ping",
    "/ready",
}
ANSWERS |= {"/parse_function_call", "/separate_reasoning", "/invocations", "/vertex_generate", "/health_generate"}
ANSWERS |= {"/get_load", "/model_info", "/get_model_info", "/get_server_info", *map("/api/{}".format, OLLAMA)}


@pytest.mark.parametrize("release", CATALOGUES, ids=lambda path: path.stem)
def test_of_each_release_a_client_gets_the_routes_that_generate_and_report(release: Path) -> None:
    """The catalogue has the routes as the release's own code defines them."""
    routes = set(json.loads(release.read_text(encoding="utf-8"))["routes"])
    admits = runpy.run_path(str(FILE))["admits"]
    assert len(routes) > 70
    assert {route for route in routes if admits(route, CLIENT, POD, frozenset({POD}))} == routes & ANSWERS
    assert not [route for route in routes if admits(route, CLIENT, VF, frozenset({POD}))]
    # An Ingress takes each path with all below it, by whole parts, and publishes fewer routes than the door admits.
    published = {route for route in routes if any(f"{route}/".startswith(f"{path}/") for path in PUBLISHED)}
    assert published == {route for route in routes & ANSWERS if route.startswith(("/v1/", "/generate", "/health"))}
    assert {"/flush_cache", "/update_weights_from_tensor", "/start_profile", "/set_internal_state"} <= routes - ANSWERS


@pytest.mark.parametrize("own", ["", ",", "pod"])
def test_without_an_address_of_the_pod_nothing_starts(tmp_path: Path, own: str) -> None:
    (tmp_path / "engine.py").write_text("print('started')")
    words = [sys.executable, FILE, "engine"]
    done = subprocess.run(words, check=False, cwd=tmp_path, env={"GB10_POD_IPS": own}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "GB10_POD_IPS names no address" in done.stderr


def test_the_module_sees_its_arguments_and_not_the_doors_directory(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("import sys\nprint(__name__, sys.argv, sys.path[0])")
    words = [sys.executable, FILE, "engine", "--port", "1"]
    done = subprocess.run(words, cwd=tmp_path, env={"GB10_POD_IPS": POD}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == f"__main__ ['{tmp_path}/engine.py', '--port', '1'] {tmp_path}".split()
    lacking = subprocess.run(
        [*words[:2], "none"], check=False, env={"GB10_POD_IPS": POD}, capture_output=True, text=True
    )
    assert (lacking.returncode, lacking.stderr.strip()) == (1, "this image has no module none")


def chunk(text: str, name: str = "content") -> bytes:
    return b"data: " + json.dumps({"id": "1", "choices": [{"delta": {name: text}}]}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("bodies", "noted"),
    [
        ([chunk("!")] * 64, True),
        ([chunk("!")] * 63, False),
        ([chunk("Right: "), *[chunk("! !! ", "reasoning_content")] * 30], True),
        ([json.dumps({"text": "Yes." + "!" * 80, "meta_info": {}}).encode()], True),
        ([json.dumps({"text": "!" * 80 + "Yes."}).encode()], False),
        ([chunk("-")] * 100, False),
        ([chunk("a b"), chunk('"')] * 100, False),
        ([chunk("")] * 100, False),
        ([b"!" * 200, b'"content": "' + b"!" * 200, b""], False),
    ],
)
def test_an_answer_that_ends_in_one_character_is_noted_for_the_sidecar(
    bodies: list[bytes], noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = runpy.run_path(str(FILE))
    (tmp_path / "17").mkdir()
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/17/%h.%p")
    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    async def answer() -> None:
        passed = door["watched"](send)
        await passed({"type": "http.response.start", "status": 200})
        for body in bodies:
            await passed({"type": "http.response.body", "body": body})

    asyncio.run(answer())
    assert [message["body"] for message in sent[1:]] == bodies  # type: ignore[index]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [SUSPECT] * noted
