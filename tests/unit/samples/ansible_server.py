# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Import Ansible once, then fork a process for each play. ansible_plays.py starts it and talks to it.

A line on standard input names a directory with the file request.json. The forked process writes the files stdout and
stderr there. The answer on standard output is its exit status, negative for a signal. The end of standard input ends
the server and kills its play, so both end with the process that started the server.

Ansible reads its settings when it is imported. Only plays with the settings of the server may be sent to it.
"""

import atexit
import copy
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ansible_modules
from ansible import constants
from ansible.config import manager
from ansible.module_utils._internal._datatag import AnsibleTagHelper
from ansible.plugins import loader as loaders
from ansible.plugins.connection import ConnectionBase
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

# What plays import. ansible.plugins.vars is absent: with it, Ansible silently drops group_vars.
PACKAGES = (
    "ansible.executor",
    "ansible.playbook",
    "ansible.plugins.action",
    "ansible.plugins.become",
    "ansible.plugins.callback",
    "ansible.plugins.connection",
    "ansible.plugins.inventory",
    "ansible.plugins.shell",
)
# What plays import of the collection, unless they have one of their own.
OURS = ("ansible_collections.gb10.cluster.plugins.action", "ansible_collections.gb10.cluster.plugins.filter")
# They import matplotlib and aiohttp, 43 of 146 MB, and every fork of a play and of its tasks copies the page tables.
LARGE = ("bench_report", "load_cell")
# Actions that only evaluate variables, and those that a test names. Others ask the process of the play, write files, or
# wait for other hosts.
EVALUATE = ("assert", "debug", "fail", "include_role", "include_tasks", "set_fact", "validate_argument_spec")
HERE = {f"ansible.builtin.{name}" for name in EVALUATE} | {"gb10.cluster.show"}
HERE |= set(os.environ.get("GB10_TEST_HERE", "").split())
PROGRAMS = {
    "ansible": "ansible.cli.adhoc",
    "ansible-inventory": "ansible.cli.inventory",
    "ansible-playbook": "ansible.cli.playbook",
    "ansible-vault": "ansible.cli.vault",
}


def preload() -> None:
    """Import and read what plays need, with Ansible's loader of collections, and leave no trace of the loader."""
    for name in PROGRAMS.values():
        importlib.import_module(name)
    # Each play makes and removes a temporary directory of its own.
    atexit.unregister(manager.cleanup_tmp_file)
    shutil.rmtree(constants.DEFAULT_LOCAL_TMP)
    finder = _AnsibleCollectionFinder(paths=constants.COLLECTIONS_PATHS)
    finder._install()
    ours = () if "ANSIBLE_COLLECTIONS_PATH" in os.environ else OURS
    for name in (*PACKAGES, *ours):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(LARGE):
                importlib.import_module(module.name)
    for loader in (loaders.filter_loader, loaders.test_loader):
        list(loader.all())
    read_options()
    if ours:
        read()
    finder._remove()
    # The processes share these objects' memory as long as the collector does not touch them.
    gc.collect()
    gc.freeze()


def read_options() -> None:
    """Read the options of Ansible's own plugins, which is half of the time of a short play."""
    for name, module in list(sys.modules.items()):
        parent, _dot, plugin = name.rpartition(".")
        loader = getattr(loaders, f"{parent.removeprefix('ansible.plugins.')}_loader", None)
        if loader and parent.startswith("ansible.plugins."):
            loader._load_config_defs(plugin, module, module.__file__)


def read() -> None:
    """Plan a group, so that the processes need not read profiles, rules, catalogues and argument specs again."""
    plugins = "ansible_collections.gb10.cluster.plugins"
    importlib.import_module(f"{plugins}.plugin_utils._inventory.variables").load_known()
    fabric = importlib.import_module("serving_samples").fabric()
    options = importlib.import_module("role_samples").role_values("serving_plan")
    options |= {"fabric": fabric, "candidates": list(fabric["hosts"]), "taken": []}
    importlib.import_module(f"{plugins}.action.serving_plan").ActionModule.act(None, options, {})


def fork_for_modules(requests: socket.socket) -> None:
    """Send a module that a play runs on this machine as the same user to the process that forks for modules."""
    local = importlib.import_module("ansible.plugins.connection.local")
    programs = local.Connection.exec_command

    def exec_command(
        self: Any, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        if in_data or not (found := ansible_modules.COMMAND.fullmatch(cmd)):
            return programs(self, cmd, in_data=in_data, sudoable=sudoable)
        ConnectionBase.exec_command(self, cmd, in_data=in_data, sudoable=sudoable)
        local.display.vvv(f"EXEC {cmd}", host=self._play_context.remote_addr)
        return ansible_modules.run(requests, found[1], os.fsdecode(self.cwd or Path.cwd()))

    local.Connection.exec_command = exec_command


def run_tasks_here() -> None:
    """Run tasks that only evaluate variables in the process of the play, on copies of what its fork could change.

    The fork is half of the CPU time of such a task (measured).
    """
    worker = importlib.import_module("ansible.executor.process.worker")
    fork = worker.WorkerProcess.start
    no_signals = SimpleNamespace(SIGINT=signal.SIGINT, SIGTERM=signal.SIGTERM, signal=lambda *_handler: None)

    def start(self: Any) -> None:
        task = self._task
        if task.action not in HERE or task.until:
            fork(self)
            return
        self._task = task.copy(exclude_parent=True)
        self._task._parent = task._parent
        self._host, self._play_context = copy.copy(self._host), copy.copy(self._play_context)
        self._task_vars = dict(self._task_vars)
        self._detach = lambda: None
        outputs = SimpleNamespace(stdout=io.StringIO(), stderr=io.StringIO())
        queue = mock.patch.object(worker.display, "set_queue", lambda _queue: None)
        with queue, mock.patch.multiple(worker, sys=outputs, signal=no_signals):
            self.run()

    worker.WorkerProcess.start = start


def copied(value: Any) -> Any:
    """Return a copy of parsed YAML or of variables, whose texts and numbers never change, with the tags of Ansible.

    copy.deepcopy takes a third of the CPU time of site's plan, and half of that of a template lookup (measured).
    """
    if isinstance(value, dict):
        return AnsibleTagHelper.tag_copy(value, {key: copied(item) for key, item in value.items()})
    if isinstance(value, list):
        return AnsibleTagHelper.tag_copy(value, [copied(item) for item in value])
    return value


def copy_quickly() -> None:
    """Copy in this way what is read from a file. A template sets variables of its own beside those of its task."""
    importlib.import_module("ansible.parsing.dataloader").copy = SimpleNamespace(deepcopy=copied)
    importlib.import_module("ansible.plugins.lookup.template").deepcopy = copy.copy


def wait(child: int) -> int:
    """Return the exit status of a play. Kill it if standard input ends before."""
    process = os.pidfd_open(child)
    ready = select.select([process, 0], [], [])[0]
    os.close(process)
    if 0 in ready:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def become(directory: Path, archives: str) -> str:
    """Turn the forked process into the program of the request; return the module with its main().

    Plays share the directory of the modules' archives. Otherwise each play would pack every module anew.
    """
    request: dict[str, Any] = json.loads((directory / "request.json").read_bytes())
    for number, name in enumerate((os.devnull, "stdout", "stderr")):
        opened = os.open(directory / name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    sys.argv = request["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    own = tempfile.mkdtemp(prefix=f"ansible-local-{os.getpid()}", dir=Path(constants.DEFAULT_LOCAL_TMP).parent)
    atexit.register(manager.cleanup_tmp_file, own, warn=True)
    constants.DEFAULT_LOCAL_TMP = own
    Path(own, "ansiballz_cache").symlink_to(archives)
    return PROGRAMS[Path(sys.argv[0]).name]


def serve() -> str:
    """Answer requests until standard input ends. Return in each forked process: the module with its main()."""
    modules, requests = ansible_modules.start()
    preload()
    fork_for_modules(requests)
    run_tasks_here()
    copy_quickly()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    archives = tempfile.mkdtemp()
    while line := os.read(0, 4096):
        directory = Path(os.fsdecode(line.rstrip(b"\n")))
        child = os.fork()
        if not child:
            return become(directory, archives)
        os.write(1, b"%d\n" % wait(child))
    shutil.rmtree(archives)
    # Wait for the process, so that its CPU time counts as that of this one.
    modules.kill()
    modules.wait()
    sys.exit()


if __name__ == "__main__":
    sys.exit(importlib.import_module(serve()).main())
