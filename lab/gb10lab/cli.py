# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the lab's command line."""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from . import cleanup, deps, faults, hosts, image, network, sysctl
from .lab import CHECKOUT, Lab
from .machines import HOST_KINDS, LAYOUTS, Host, hosts_of, switches_of
from .podman import Podman
from .shell import LabError, say

# builds the missing Kubernetes parts in the cache; quick if nothing is missing
PREPARE = CHECKOUT / "lab" / "kubernetes" / "prepare"
CANNOT_BE_HAD = 3


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        return int(options.function(options))
    except LabError as error:
        print(f"labctl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labctl: interrupted; run `lab/labctl down`, or `up` to start again", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="labctl", description="A simulated GB10 cluster on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, function: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(function=function)
        return sub

    add("deps", _deps, "install the Debian packages that the lab needs")
    up = add("up", _up, "start the lab, or add nodes to it; does nothing if it already runs")
    up.add_argument("--nodes", type=int, default=4, help="GPU nodes beside the control host (default 4)")
    up.add_argument("--kubernetes", action=argparse.BooleanOptionalAction, default=None,
                    help="prepare the Kubernetes parts in the cache (default: if they are available)")  # fmt: skip
    up.add_argument("--hosts", choices=HOST_KINDS, default=os.environ.get("GB10_LAB_HOSTS") or HOST_KINDS[0],
                    help="spark: a machine as delivered, with NetworkManager; kind: with systemd-networkd "
                         "(default: $GB10_LAB_HOSTS, else %(default)s)")  # fmt: skip
    up.add_argument("--layout", choices=LAYOUTS, default="switch",
                    help="switch: Sparks on one switch; ring: three to eight Sparks in a ring; rings, switches: "
                         "half of the Sparks on each of two; b300: one server (default %(default)s)")  # fmt: skip
    add("down", _down, "remove the lab completely")
    status = add("status", _status, "show what runs")
    status.add_argument("--json", action="store_true", help="print JSON")
    add("list", _list, "list all labs on this machine, with their state directories")
    run = add("run", _run, "run a command in the lab's management network, like a laptop there: run -- COMMAND …")
    run.add_argument("words", nargs=argparse.REMAINDER)
    execute = add("exec", _exec, "run a command on a host: exec HOST -- COMMAND …")
    execute.add_argument("host")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    reboot = add("reboot", _reboot, "restart a host: it loses its VFs, run-time addresses and /run, and keeps its disk")
    reboot.add_argument("host")
    fault = add("fault", _fault, f"inject a fault, until the lab is removed: fault HOST NAME. {faults.text()}")
    fault.add_argument("host")
    fault.add_argument("name", choices=[*faults.OF_HOST, faults.ONE_DOMAIN[0]])
    return parser


def _deps(_options: argparse.Namespace) -> int:
    deps.install()
    return 0


@contextlib.contextmanager
def _locked(lab: Lab) -> Iterator[None]:
    while True:
        # `down` of another process may remove the file and its directory at any time
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            lab.lock.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(lab.lock.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another labctl is changing lab {lab.name}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_ino == lab.lock.stat().st_ino:
                held = stack.pop_all()
                break
    with held:
        yield


def _up(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    wanted = hosts_of(options.nodes, options.layout)
    if absent := deps.missing():
        raise LabError(f"missing on this machine: {', '.join(absent)}. Run `lab/labctl deps` and try again.")
    kubernetes = options.kubernetes is not False and _prepare_kubernetes(lab, required=options.kubernetes is True)
    deps.require_no_overlay(lab.state, lab.cache)
    with _locked(lab):
        known = lab.describe()
        old = _running(lab) if known else []
        healthy = bool(old) and len(_alive(lab)) == len(old)
        for name in ("hosts", "layout"):
            if healthy and known and known[name] != getattr(options, name):
                raise LabError(f"lab {lab.name} runs with --{name} {known[name]}; run `lab/labctl down` first")
        if healthy and len(old) == len(wanted):
            say(f"lab {lab.name} runs already: {len(wanted)} hosts")
            return 0
        if healthy and len(old) > len(wanted):
            raise LabError(f"lab {lab.name} runs with {len(old) - 1} nodes; remove it with `lab/labctl down` first")
        if not healthy:
            old = []
            _begin(lab, say_so=known is not None)
        name = image.ensure(lab)
        new = [host for host in wanted if host not in old]
        say(f"lab {lab.name}: namespaces, cables and disks for {len(new)} hosts")
        podman = Podman(lab, images=image.store(lab))
        if old:
            for host in new:
                hosts.discard(lab, podman, host)
        else:
            network.create(lab, switches_of(wanted))
            hosts.make_keys(lab)
        network.connect(lab, new, options.hosts)
        hosts.write_ssh(lab, wanted)
        hosts.start(lab, podman, new, name, everybody=wanted, kind=options.hosts)
        hosts.introduce(lab, podman, new, to=old)
        hosts.write_inventory(lab, wanted)
        lab.finish({"name": lab.name, "state": str(lab.state), "nodes": options.nodes, "kubernetes": kubernetes,
                    "hosts": options.hosts, "layout": options.layout})  # fmt: skip
    say(f"up: {', '.join(f'{host.name} {host.address}' for host in wanted[:5])}{', …' if len(wanted) > 5 else ''}")
    say(f"try: lab/labctl run -- ansible all -i {lab.state}/inventory -m ansible.builtin.ping")
    return 0


def _begin(lab: Lab, *, say_so: bool) -> None:
    """Empty the state directory of this lab."""
    lab.claim()
    if cleanup.remove(lab) and say_so:
        say("removed the remains of an earlier lab")
    lab.claim()
    sysctl.prepare()


def _prepare_kubernetes(lab: Lab, *, required: bool) -> bool:
    """Prepare the Kubernetes parts in the cache; return False if they are unavailable and not ``required``."""
    lab.cache.mkdir(parents=True, exist_ok=True)
    status = subprocess.run([PREPARE], env={**os.environ, **lab.environment()}, check=False).returncode
    if status == CANNOT_BE_HAD and not required:
        say("this lab has no Kubernetes (see above)")
        return False
    if status != 0:
        raise LabError("the Kubernetes parts could not be prepared (see above); or run `up --no-kubernetes`")
    return True


def _down(_options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    with _locked(lab):
        found = cleanup.remove(lab)
        sysctl.restore()
        lab.lock.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        lab.lock.parent.rmdir()
    say(f"lab {lab.name} is removed" if found else f"no lab {lab.name} here, nothing to remove")
    return 0


def _running(lab: Lab) -> list[Host]:
    known = lab.describe()
    if known is None:
        raise LabError("no lab is up here; start it with `lab/labctl up`")
    return hosts_of(int(str(known["nodes"])), str(known["layout"]))


def _alive(lab: Lab) -> list[str]:
    return hosts.alive(Podman(lab, images=image.store(lab)), lab, _running(lab))


def _status(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    known = lab.describe()
    alive = _alive(lab) if known else []
    members = _running(lab) if known else []
    rows = [{"host": host.name, "address": host.address, "running": host.name in alive} for host in members]
    complete = bool(rows) and all(row["running"] for row in rows)
    if options.json:
        print(json.dumps({"name": lab.name, "state": str(lab.state), "cache": str(lab.cache), "up": complete,
                          "hosts": rows}))  # fmt: skip
    else:
        print(f"lab {lab.name}: {'up' if complete else 'broken, run `lab/labctl up`' if rows else 'down'}")
        for row in rows:
            print(f"  {row['host']:10} {row['address']:12} {'running' if row['running'] else 'NOT running'}")
    return 0 if complete else 3


def _list(_options: argparse.Namespace) -> int:
    deps.require_root()
    for lab in Lab.every():
        print(f"{lab.name}  {'up' if lab.describe() else 'unfinished'}  GB10_LAB_STATE={lab.state}")
    return 0


def _words(words: list[str]) -> list[str]:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise LabError("no command was given: put it after `--`")
    return words


def _run(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    _running(lab)
    words = _words(options.words)
    proxies = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
    environment = {k: v for k, v in os.environ.items() if k.lower() not in proxies} | lab.environment()
    if not shutil.which(words[0]):
        raise LabError(f"{words[0]}: command not found on this machine")
    argv = [*hosts.inside(lab), *words]
    os.execvpe(argv[0], argv, environment)


def _find(lab: Lab, name: str) -> Host:
    for host in _running(lab):
        if host.name == name:
            return host
    raise LabError(f"{name} is not a host of this lab; choose one of {', '.join(host.name for host in _running(lab))}")


def _exec(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    name = hosts.container(lab, _find(lab, options.host))
    podman = Podman(lab, images=image.store(lab))
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    argv = ["podman", "exec", "--interactive", *terminal, name, *_words(options.words)]
    os.execvpe(argv[0], argv, {**os.environ, **podman.env})


def _reboot(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    host = _find(lab, options.host)
    Podman(lab, images=image.store(lab))("restart", "--time=0", hosts.container(lab, host))
    hosts.wait(lab, [host])
    say(f"{host.name} is back")
    return 0


def _fault(options: argparse.Namespace) -> int:
    deps.require_root()
    lab = Lab.here()
    if options.name == faults.ONE_DOMAIN[0]:
        _running(lab)
        faults.join_rails(lab)
        return 0
    name = hosts.container(lab, _find(lab, options.host))
    _what, script = faults.OF_HOST[options.name]
    Podman(lab, images=image.store(lab))("exec", name, "bash", "-euc", script)
    return 0
