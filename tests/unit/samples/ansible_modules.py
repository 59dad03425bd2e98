# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the modules of plays on this machine in processes forked from one that has imported ansible.module_utils.

Otherwise each module compiles it anew from its archive. What the archive has of collections is still imported from it.
As a program, this file is the process that forks. It must not import what of Ansible runs only on the controller. Its
standard input is a socket with the requests.
"""

import importlib
import json
import os
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

# The command with which Ansible runs a module that needs neither another user nor another environment.
PYTHON = rf"{re.escape(str(Path(sys.executable).parent))}/python[\d.]*"
COMMAND = re.compile(rf"/bin/sh -c '{PYTHON} (\S+/AnsiballZ_\w+\.py)(?: && sleep 0)?'")
IMPORTS = ("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz")


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process; return it with the socket for requests. It ends when nobody has this socket any more."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return subprocess.Popen([sys.executable, __file__], stdin=theirs, stdout=subprocess.DEVNULL), requests


def run(requests: socket.socket, script: str, directory: str) -> tuple[int, bytes, bytes]:
    """Run a module's script to its end; return its exit status and what it wrote to its two outputs."""
    status, *outputs = (os.pipe() for _end in range(3))
    request = json.dumps([script, directory, dict(os.environ)]).encode()
    socket.send_fds(requests, [request], [writes for _reads, writes in (status, *outputs)])
    read = {reads: b"" for reads, _writes in outputs}
    with selectors.DefaultSelector() as unfinished:
        for reads, writes in (status, *outputs):
            os.close(writes)
            if reads in read:
                unfinished.register(reads, selectors.EVENT_READ)
        while unfinished.get_map():
            for key, _events in unfinished.select():
                read[key.fd] += (part := os.read(key.fd, 65536))
                if not part:
                    unfinished.unregister(key.fd)
    code = int(os.read(status[0], 16))
    for reads in (status[0], *read):
        os.close(reads)
    return code, *read.values()


def become(request: bytes, streams: list[int]) -> str:
    """Turn the forked process into the one of a module; return the path of its script."""
    script, directory, environment = json.loads(request)
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None
    sys.argv = [script]
    return str(script)


def serve(requests: socket.socket) -> str:
    """Fork for each request and answer with the exit status until nobody can ask. Return the script in the fork."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _events in waiting.select():
                if key.fd in running:
                    child, status = running.pop(key.fd)
                    waiting.unregister(key.fd)
                    os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                    os.close(status)
                    os.close(key.fd)
                    continue
                request, given, *_rest = socket.recv_fds(requests, 1 << 20, 3)
                if not request:
                    sys.exit()
                status, *streams = given
                if not (child := os.fork()):
                    os.close(status)
                    requests.detach()  # standard input becomes another file
                    return become(request, streams)
                for stream in streams:
                    os.close(stream)
                process = os.pidfd_open(child)
                running[process] = child, status
                waiting.register(process, selectors.EVENT_READ)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTS:
        importlib.import_module(name)
    runpy.run_path(serve(socket.socket(fileno=0)), run_name="__main__")
