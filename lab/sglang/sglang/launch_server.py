# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED ``python3 -m sglang.launch_server``: real sockets and a real command line, no model."""

import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from . import _cli, _fabric, _model, _nccl
from ._engine import Engine, Request
from ._http import Server
from ._ranks import Group, Ring

_IGNORES_SIGTERM = (0, 5, 21)
SHARDS = 10


class Rank:
    """One process of the group."""

    def __init__(self, args: dict[str, Any], version: str) -> None:
        self.args, self.version = args, version
        self.rank, self.size = int(args["node_rank"] or 0), int(args["nnodes"] or 1)
        self.tag = f" TP{self.rank}" if int(args["tp_size"]) > 1 else ""
        self.log = _nccl.Log(dict(os.environ))
        self.group = Group(self.rank, self.size)
        self.net: _nccl.Net | None = None
        self.comm: _nccl.Communicator | None = None
        self.ring: Ring | None = None
        self._acknowledged: dict[int, int] = {}
        self._step = 0
        self._news = threading.Condition()
        self._leaving = False

    def say(self, text: str) -> None:
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self.tag}] {text}", flush=True)

    # --- start -------------------------------------------------------------------------------------------------

    def rails(self) -> list[str]:
        """Return the source addresses of this rank's traffic; a device without a usable GID has none."""
        if self.net is None:
            return []
        if self.net.name == "Socket":
            return [interface.address for interface in self.net.interfaces]
        index = os.environ.get("NCCL_IB_GID_INDEX")
        chosen = [_nccl.choose_gid(device, index) for device in self.net.devices]
        return [gid.address if gid else "" for gid in chosen]

    def meet(self) -> None:
        """Choose the network and wait for the other ranks."""
        if self.size == 1:
            return
        self.say("Init torch distributed begin.")
        address, _, port = str(self.args["dist_init_addr"]).rpartition(":")
        self.log.say("INIT", "ENV/Plugin: Could not find: libnccl-env.so")
        net = _nccl.select(dict(os.environ), _fabric.interfaces(), _fabric.devices(), self.log)
        self.net = net
        timeout = float(self.args.get("dist_timeout") or 600)
        self.group.meet(address, int(port), net.oob.address, self.rails(), net.name, timeout)
        self.comm = _nccl.Communicator(self.log, net, self.rank, self.size, str(self.args["dist_init_addr"]))
        self.comm.start()
        self.say("Init torch distributed ends. elapsed=1.60 s, mem usage=0.45 GB")

    def load(self) -> None:
        """Log a simulated load."""
        seconds = float(os.environ.get("SGLANG_STANDIN_LOAD_SECONDS", "1"))
        _model.download_config(str(self.args["model_path"]))
        self.say("Load weight begin. avail mem=115.20 GB")
        for number in range(1, SHARDS + 1):
            time.sleep(seconds / SHARDS)
            if self.rank == 0:
                done = 100 * number // SHARDS
                self.say(f"Loading safetensors checkpoint shards: {done}% Completed | {number}/{SHARDS}")
        self.say(f"Load weight end. elapsed={seconds:.2f} s, type=StandIn, avail mem=60.00 GB, mem usage=0.00 GB.")
        fault = _model.faults().get("crash-at-start")
        if fault is not None and fault in {"", str(self.rank)}:
            raise RuntimeError("CUDA error: out of memory (asked for by SGLANG_STANDIN_FAULT)")

    # --- collectives -------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Do what the first collective does: queue pairs, then the ring."""
        if self.comm is None or self.net is None:
            return
        index = os.environ.get("NCCL_IB_GID_INDEX")
        gids = [_nccl.choose_gid(device, index) for device in self.net.devices]
        self.comm.connect(gids, self.group.networks[self.rank - 1])
        devices = [device.name for device in self.net.devices]
        self.ring = Ring(self.rank, self.size, self.rails(), devices)
        self.ring.connect(self.group.peers)

    def collective(self, rows: int) -> None:
        """Make one step on all ranks; return after every worker has made it, without a time limit."""
        if self.size == 1:
            return
        self._step += 1
        self.group.order(op="step", rows=rows)
        self.follow(rows)
        with self._news:
            while len([s for s in self._acknowledged.values() if s >= self._step]) < self.size - 1:
                self._news.wait()

    def follow(self, rows: int) -> None:
        if self.ring is None:
            self.connect()
        if self.ring is not None:
            self.ring.exchange(_model.step_bytes(self.args, self.size, rows))

    def on_answer(self, rank: int, message: dict[str, Any]) -> None:
        with self._news:
            self._acknowledged[rank] = int(message["step"])
            self._news.notify_all()

    def on_loss(self, rank: int) -> None:
        if self._leaving:
            return
        self.say(f"RuntimeError: Connection closed by peer (rank {rank}); the group is broken, exiting.")
        self.leave(1)

    def leave(self, status: int) -> None:
        sys.stdout.flush()
        os._exit(status)

    # --- roles -------------------------------------------------------------------------------------------------

    def head(self) -> None:
        self.group.answers(self.on_answer, self.on_loss)
        engine = Engine(self.args, self.net.name if self.net else "", self.collective, self.say)
        server = Server(self.args, self.version, engine)
        server.start()
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        threading.Thread(target=self._warm_up, args=(engine, server), daemon=True).start()
        engine.run()

    def _warm_up(self, engine: Engine, server: Server) -> None:
        if not self.args.get("skip_server_warmup"):
            request = Request("warm up", 8)
            engine.submit(request)
            while request.out.get() != "length":
                pass
        server.ready = True
        print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] The server is fired up and ready to roll!", flush=True)

    def _stop(self) -> None:
        self._leaving = True
        try:
            self.group.order(op="stop")
        except OSError:
            self.say("a worker was gone already")
        self.leave(0)

    def worker(self) -> None:
        """Follow the head's commands until it exits."""
        Server(self.args, self.version, None).start()
        self.say(f"Dummy health check server started in background thread at {self.args['host']}:{self.args['port']}")
        numbers = tuple(int(part) for part in self.version.split(".")[:3])
        if numbers >= _IGNORES_SIGTERM:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        head, step = self.group.head(), 0
        while True:
            try:
                order = head.receive()
            except OSError as error:
                self.say(f"RuntimeError: {error}; the head is gone, exiting.")
                self.leave(1)
            if order["op"] == "stop":
                self.leave(0)
            step += 1
            self.follow(int(order["rows"]))
            head.send(step=step)


def main(argv: list[str]) -> None:
    version = _cli.version()
    args = _cli.parse(argv)
    rank = Rank(args, version)
    print(f"STAND-IN for SGLang {version}: no model, no GPU, no RDMA (gb10.cluster lab)", flush=True)
    shown = ", ".join(f"{key}={value!r}" for key, value in args.items() if value is not None)
    rank.say(f"server_args=ServerArgs({shown})")
    try:
        rank.meet()
        rank.load()
        if rank.rank == 0:
            rank.head()
        else:
            rank.worker()
    except Exception:
        # A thread of the HTTP server would keep the process alive without its engine.
        traceback.print_exc()
        sys.stderr.flush()
        rank.leave(1)


if __name__ == "__main__":
    main(sys.argv[1:])
