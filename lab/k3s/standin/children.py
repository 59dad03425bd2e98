# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the child processes of the simulated K3s and talk to systemd."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .settings import StandInError

_GRACE_S = 8.0


def log(text: str) -> None:
    """Write one line to the journal."""
    print(f"k3s stand-in: {text}", file=sys.stderr, flush=True)


def notify_ready() -> None:
    """Tell systemd that the service is ready, if systemd waits for that."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(b"READY=1")


def wait_for(what: str, check: Callable[[], bool], timeout: float, interval: float = 0.1) -> None:
    """Poll until ``check`` is true; raise StandInError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    told = time.monotonic()
    while not check():
        if time.monotonic() > end:
            raise StandInError(f"{what} did not happen within {timeout:.0f} s")
        if time.monotonic() - told > 10:
            told = time.monotonic()
            log(f"waiting: {what}")
        time.sleep(interval)


class Children:
    """Start programs; end all of them when one ends or systemd asks to stop. Use it only in the main thread."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._stop = True
        raise KeyboardInterrupt

    def start(self, name: str, argv: Sequence[str], output: Path | None = None) -> None:
        """Start a program that dies with this process; its output goes to the journal or to a file."""
        log(f"starting {name}")
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in {"NOTIFY_SOCKET", "K3S_TOKEN", "K3S_AGENT_TOKEN"}
        }
        stream = output.open("ab") if output else None
        try:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *argv], env=environment, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream, process_group=0,
            )  # fmt: skip
        finally:
            if stream:
                stream.close()

    def check(self) -> None:
        """Raise StandInError when a program has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise StandInError(f"{name} exited with status {process.returncode}")

    def wait_for(self, what: str, check: Callable[[], bool], timeout: float = 120) -> None:
        """Poll until ``check`` is true, failing at once when a program ends."""

        def healthy() -> bool:
            self.check()
            return check()

        wait_for(what, healthy, timeout)

    def watch(self) -> None:
        """Return when systemd asks to stop; raise StandInError when a program ends by itself."""
        try:
            while not self._stop:
                self.check()
                time.sleep(0.2)
        except KeyboardInterrupt:
            return

    def stop(self) -> None:
        """End all programs in reverse order; containers keep running, as with K3s."""
        self._stop = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for name, process in reversed(self._running.items()):
            if process.poll() is None:
                process.terminate()
                # the API server would wait for its watchers for a minute
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0 if name == "kube-apiserver" else _GRACE_S)
                if process.poll() is None:
                    process.kill()
                    process.wait()


def background(name: str, work: Callable[[], None]) -> None:
    """Run ``work`` forever in a thread; log its exceptions and start it again."""

    def loop() -> None:
        while True:
            try:
                work()
            except (OSError, ValueError, KeyError, StandInError, subprocess.SubprocessError) as error:
                log(f"{name}: {error}")
            time.sleep(2)

    threading.Thread(target=loop, name=name, daemon=True).start()
