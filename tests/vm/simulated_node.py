# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a virtual machine runs in place of Kubernetes and SGLang; standard library only.

``api`` answers the requests of the real sidecar and the real supervisor for the pods of one group, and does a kubelet's
part: each pod is a unit rank@NUMBER, which a deletion ends and starts again. ``server`` takes memory as CUDA does: only
free memory. ``hog`` takes memory fast until little is available, then slowly.
"""

import argparse
import json
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATE = Path("/run/gb10-test")
CHUNK = 32


def meminfo(name: str) -> int:
    """Return a line of /proc/meminfo in MiB."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


class Quiet(BaseHTTPRequestHandler):
    """Answers with JSON or text, and logs nothing."""

    def answer(self, body: Any, status: int = 200) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def stamp() -> str:
    """Return the time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Pod:
    """One pod; its server is a unit."""

    def __init__(self, name: str) -> None:
        self.name, self.unit = name, f"rank@{name.split('-')[1]}"
        self.born, self.conditions = 0, dict[str, Any]()
        self.renew()

    def renew(self) -> None:
        """Replace the pod by a new one, as its StatefulSet does."""
        subprocess.run(["systemctl", "stop", f"{self.unit}.service"], check=True)
        self.born += 1
        self.conditions = {}
        subprocess.run(["systemctl", "start", f"{self.unit}.service"], check=True)
        self.started = stamp()

    def show(self) -> dict[str, Any]:
        """Return the pod as the API does."""
        begun = (STATE / self.unit).exists()
        server = {"name": "sglang", "started": begun, "restartCount": 0}
        running = {"running": {"startedAt": self.started}}
        sidecar = {"name": "transport", "ready": True, "state": running}
        return {
            "metadata": {"uid": f"{self.name}-{self.born}", "name": self.name},
            "status": {
                "podIP": "127.0.0.1",
                "containerStatuses": [server | {"state": running}, sidecar],
                "conditions": list(self.conditions.values()),
            },
        }


def api(certificate: Path, names: list[str]) -> None:
    """Serve the API until the unit is stopped; write what was asked for into files."""
    pods = {name: Pod(name) for name in names}
    lock = threading.Lock()

    def note(kind: str, what: str) -> None:
        with lock, (STATE / kind).open("a") as file:
            file.write(f"{what}\n")

    class Handler(Quiet):
        def path_and_pod(self) -> tuple[str, Pod | None]:
            words = self.path.partition("?")[0].split("/")
            return words[-1], next((pods[word] for word in words if word in pods), None)

        def body(self) -> Any:
            return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")

        def do_GET(self) -> None:
            last, pod = self.path_and_pod()
            self.answer("" if last == "log" else pod.show() if pod else {})

        def do_PATCH(self) -> None:
            _last, pod = self.path_and_pod()
            for condition in self.body()["status"]["conditions"]:
                if pod:
                    pod.conditions[condition["type"]] = condition
            self.answer({})

        def do_POST(self) -> None:
            event = self.body()
            note("events", f"{event['involvedObject']['name']} {event['reason']}: {event['message']}")
            self.answer({}, 201)

        def do_DELETE(self) -> None:
            _last, pod = self.path_and_pod()
            self.body()
            if pod:
                note("deleted", pod.name)
                pod.renew()
            self.answer({})

    server = ThreadingHTTPServer(("127.0.0.1", 6443), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


def server(size: int, port: int, ready: Path) -> None:
    """Take so many MiB of free memory, then answer health requests; exit if there is no free memory."""
    held = []
    for _ in range(0, size, CHUNK):
        for patience in range(6):
            if meminfo("MemFree") > 2 * CHUNK:
                break
            if patience == 5:
                sys.exit(f"CUDA out of memory: {meminfo('MemFree')} MiB are free, {meminfo('MemAvailable')} available")
            time.sleep(1)
        held.append(b"x" * (CHUNK << 20))

    class Health(Quiet):
        def do_GET(self) -> None:
            self.answer("")

    ready.touch()
    print(f"holding {len(held) * CHUNK} MiB", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever()


def hog(size: int, slow_below: int) -> None:
    """Take so many MiB: at once while more than ``slow_below`` are available, then 1 MiB per second."""
    held = 0
    kept = []
    while held < size:
        slow = meminfo("MemAvailable") < slow_below
        kept.append(b"x" * ((1 if slow else 16) << 20))
        held += 1 if slow else 16
        time.sleep(1 if slow else 0)
    print(f"holding {len(kept)} pieces", flush=True)
    time.sleep(3600)


def main() -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("api")
    part.add_argument("certificate", type=Path)
    part.add_argument("names", nargs="+")
    part = parts.add_parser("server")
    part.add_argument("size", type=int)
    part.add_argument("port", type=int)
    part.add_argument("ready", type=Path)
    part = parts.add_parser("hog")
    part.add_argument("size", type=int)
    part.add_argument("slow_below", type=int)
    options = vars(parser.parse_args())
    {"api": api, "server": server, "hog": hog}[options.pop("part")](**options)


if __name__ == "__main__":
    main()
