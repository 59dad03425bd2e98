#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import control, fetch, share, store

# Seconds without a sign of the controller after which another run may end a transfer.
ABANDONED = 30
# Seconds that a run waits for an earlier transfer to end or to be abandoned.
PATIENCE = 45


def start(options: dict[str, Any], at: control.Control) -> dict[str, Any]:
    """Start the process. Raise OSError; fail if another transfer runs here."""
    deadline = time.monotonic() + PATIENCE
    while not at.acquire():
        if float(at.read().get("age", 0)) > ABANDONED:
            at.stop()
        elif time.monotonic() > deadline:
            who = f"Another transfer of models runs on this node, by process {at.read().get('pid')}"
            return {"failed": True, "msg": f"{who}. Wait until it has ended, and run again."}
        else:
            time.sleep(1)

    def work(report: Callable[[str], None]) -> None:
        run = share.Share(options, at)
        try:
            run.listen()
        except OSError as error:
            where = f"Port {options['port']} can't be opened on {', '.join(options['addresses'])}: {error}"
            report(f"{where}. Another program may use it: choose another one with models_share_port.")
            return
        signal.signal(signal.SIGTERM, lambda *_arguments: run.stop())
        at.write(run.status())
        report("")
        run.run()
        at.remove()

    problem = control.detach(work)
    if problem:
        at.remove()
    at.release()
    count = sum(len(model["files"]) for model in options["models"])
    running = f"The transfer is running: {count} files of {len(options['models'])} models."
    return {"failed": True, "msg": problem} if problem else {"msg": running}


def planned(options: dict[str, Any]) -> dict[str, Any]:
    """Return what a transfer would fetch."""
    left = 0
    for directory, items in groupby(share.items_of(options["models"]), key=lambda item: item.directory):
        recorded = store.read_marker(directory).get("files") or {}
        left += store.needed_bytes(directory, store.missing(directory, [item.file for item in items], recorded))
    return {"changed": left > 0, "msg": f"{store.human(left)} would be fetched."}


def watch(options: dict[str, Any], at: control.Control) -> dict[str, Any]:
    """Wait until the transfer is done or the slice is over; return its state."""
    begun, first = time.monotonic(), at.read()
    while True:
        # Read before the question: a process that ends in between has written its last status.
        running = at.is_locked()
        status = at.read()
        if not running:
            why = "It was not started, or it was killed. Run again: files that are there are kept"
            return {"failed": True, "done": False, "msg": f"No transfer runs on this node. {why}."}
        at.touch()
        if status.get("done") or status.get("error") or time.monotonic() - begun > options["slice_seconds"]:
            break
        time.sleep(0.5)
    seconds = max(time.monotonic() - begun, 0.001)
    result = {"changed": bool(status.get("changed")), "done": bool(status.get("done")), "status": status}
    if status.get("error"):
        advice = "Run again when this is repaired: files that are there are kept"
        return result | {"failed": True, "msg": f"The models can't be fetched: {status['error']}. {advice}."}
    return result | {"msg": progress(status, status["present_bytes"] - first.get("present_bytes", 0), seconds)}


def progress(status: dict[str, Any], fetched: int, seconds: float) -> str:
    """Return how far a transfer is on this node, with the rate of the last slice and the remaining time."""
    total, there = status["total_bytes"], status["present_bytes"]
    parts = [f"{status['files'] - status['files_left']} of {status['files']} files"]
    parts.append(store.progress(total, total - there, fetched, seconds))
    for what, count in (("downloaded", "hub_bytes"), ("copied", "peer_bytes"), ("served", "sent_bytes")):
        if status[count]:
            parts.append(f"{store.human(status[count])} {what}")
    got = status["hub_bytes"] + status["peer_bytes"]
    if status["done"] and got:
        parts.append(f"{store.human(got / max(status['seconds'], 0.001))}/s in {status['seconds']:.0f} s")
    if status["silent"]:
        parts.append(f"no answer from {', '.join(sorted(status['silent']))}")
    return f"models: {', '.join(parts)}"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **fetch.HUB_SPEC,
            "state": {"type": "str", "choices": ["started", "watched", "absent"], "default": "started"},
            "control": {"type": "path", "required": True},
            "place": {"type": "int", "default": 0},
            "models": {"type": "list", "elements": "dict", "default": []},
            "hub": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 7420},
            "secret": {"type": "str", "default": "", "no_log": True},
            "streams": {"type": "int", "default": 4},
            "orphan_seconds": {"type": "float", "default": 60},
            "longest_seconds": {"type": "float", "default": 86400},
            "slice_seconds": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    options, at = module.params, control.Control(Path(module.params["control"]))
    result: dict[str, Any] = {"changed": False, "done": True}
    if options["state"] == "started" and options["addresses"] and not options["secret"]:
        module.fail_json(
            msg="secret is empty, so anybody could fetch the files. Give all nodes the same token.", **result
        )
    try:
        if module.check_mode:
            result |= planned(options) if options["state"] == "started" else {"msg": "Nothing runs in check mode."}
        elif options["state"] == "started":
            result |= start(options, at)
        elif options["state"] == "watched":
            result |= watch(options, at)
        elif options["secret"] and at.is_of_another(options["secret"]):
            # The end of a run that was refused because of it.
            result["msg"] = "Another run's transfer of models goes on on this node."
        else:
            ended = at.stop()
            result["msg"] = "The transfer has ended." if ended else "No transfer runs on this node."
    except store.ListingError as error:
        module.fail_json(msg=f"This is no list of files of a model: {error}. Nothing was fetched.", **result)
    except OSError as error:
        advice = f"Set ansible_become: true, and check the disk of {at.directory.parent}"
        module.fail_json(msg=f"The transfer of the models fails: {error}. {advice}.", **result)
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
