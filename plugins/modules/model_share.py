#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, serve, share, store

SHOWN = 5  # reasons why files are missing


def serve_files(options: dict[str, Any]) -> dict[str, Any]:
    """Start to serve the files of this node. Raise OSError."""
    process = Path(options["process"])
    serve.stop(process)
    peers = {way["to"] for peer in options["peers"] for way in peer["paths"]}
    serving = serve.Serving(share.items_of(options["models"]), peers, options["secret"])
    try:
        serving.bind(options["addresses"], options["port"])
    except OSError as error:
        where = f"Port {options['port']} can't be opened on {', '.join(options['addresses'])}: {error}"
        advice = "Another program may use it: choose another one with models_share_port"
        return {"failed": True, "msg": f"{where}. {advice}."}
    serve.start(process, serving, options["orphan_seconds"], options["longest_seconds"])
    return {"msg": f"{len(serving.files)} files are served on {', '.join(options['addresses'])}."}


def fetch_files(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Return the result of one slice. Raise OSError."""
    items, is_hub = share.items_of(options["models"]), options["state"] == "downloaded"
    hub = share.Source("the hub", fetch.Hub(options["url"], options["token"], share.TIMEOUT))
    sources = [hub] if is_hub else share.peers_of(options["peers"], options["port"], options["secret"])
    progress = share.Progress(**options["progress"])
    slice_ = share.Slice(items, sources, is_hub, progress)
    lacking = slice_.missing()
    before, begun = left_of(lacking), time.monotonic()
    if check_mode:
        return {"changed": before > 0, "msg": f"{store.human(before)} would be fetched."}
    # Nodes begin with different files, so that they soon have something for each other.
    first = options["place"] * len(lacking) // (len(options["peers"]) + 1)
    wanted = [item for item in lacking[first:] + lacking[:first] if not is_hub or item.name in options["hub"]]
    ended = slice_.run(wanted, options["streams"], options["slice_seconds"])
    missing = slice_.missing()
    result = {"changed": slice_.changed, "done": ended, "progress": asdict(progress), "lacking": len(missing)}
    expected = set(missing) & set(wanted) if ended and not options["may_lack"] else set()
    if slice_.error or expected:
        reasons = [slice_.error] if slice_.error else [f"{name} {why}" for name, why in sorted(slice_.why.items())]
        more = [f"and {len(reasons) - SHOWN} more"] if len(reasons) > SHOWN else []
        said = "; ".join([*reasons[:SHOWN], *more]) or "no other node has them"
        advice = "Run again when this is repaired: files that are there are kept"
        return result | {
            "failed": True, "done": False,
            "msg": f"{len(missing)} files of the models can't be fetched: {said}. {advice}.",
        }  # fmt: skip
    if ended and not options["peers"]:
        for item in items:
            item.drop_cache()
    left = left_of(missing)
    total = sum(item.file.size for item in items)
    parts = [f"{len(items) - len(missing)} of {len(items)} files"]
    parts.append(store.progress(total, left, before - left, time.monotonic() - begun))
    for what, count in (("downloaded", progress.hub_bytes), ("copied", progress.peer_bytes)):
        parts += [f"{store.human(count)} {what}"] if count else []
    if got := progress.hub_bytes + progress.peer_bytes:
        parts.append(f"{store.human(got / max(progress.seconds, 0.001))}/s in {progress.seconds:.0f} s")
    silent = sorted({source.name for source in sources if source.failed})
    parts += [f"no answer from {', '.join(silent)}"] if silent else []
    return result | {"msg": f"models: {', '.join(parts)}"}


def left_of(items: list[share.Item]) -> int:
    """Return how many bytes of files are still to come."""
    return sum(store.needed_bytes(item.directory, [item.file]) for item in items)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **fetch.HUB_SPEC,
            "state": {"type": "str", "choices": ["downloaded", "served", "copied", "absent"], "required": True},
            "process": {"type": "path", "default": "/run/gb10-models.pid"},
            "place": {"type": "int", "default": 0},
            "models": {"type": "list", "elements": "dict", "default": []},
            "hub": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "dict", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 7420},
            "secret": {"type": "str", "default": "", "no_log": True},
            "streams": {"type": "int", "default": 4},
            "may_lack": {"type": "bool", "default": False},
            "orphan_seconds": {"type": "float", "default": 90},
            "longest_seconds": {"type": "float", "default": 86400},
            "slice_seconds": {"type": "float", "default": 20},
            "progress": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "done": True}
    if options["state"] == "served" and not options["secret"]:
        module.fail_json(
            msg="secret is empty, so anybody could fetch the files. Give all nodes the same token.", **result
        )
    try:
        if options["state"] in ("downloaded", "copied"):
            result |= fetch_files(options, module.check_mode)
        elif module.check_mode:
            result["msg"] = "Nothing is served in check mode."
        elif options["state"] == "served":
            result |= serve_files(options)
        else:
            ended = serve.stop(Path(options["process"]))
            result["msg"] = "The files are no longer served." if ended else "No files were served."
    except store.ListingError as error:
        module.fail_json(msg=f"This is no list of files of a model: {error}. Nothing was fetched.", **result)
    except OSError as error:
        advice = "Set ansible_become: true, and check the disk of the models"
        module.fail_json(msg=f"The transfer of the models fails: {error}. {advice}.", **result)
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
