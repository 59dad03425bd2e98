#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_share
short_description: Fetch models from the hub or from other nodes, and serve them to these
version_added: 0.1.0
description:
  - V(downloaded) fetches the files in O(hub), V(copied) all that are missing from O(peers); both show the progress.
    V(served) starts a process that serves the verified files of this node, and returns. V(absent) ends the process.
  - The process listens on O(addresses) only, answers only the addresses of O(peers), and only requests with O(secret).
    It ends with V(absent), and by itself when no peer asked for 90 seconds, or after O(longest_seconds).
  - Every file gets its final name only if its digest matches the plan. Downloads and copies resume after an
    interruption. If a peer stops answering, another one that has the file continues.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.hub]
attributes:
  check_mode:
    description: Fetches and serves nothing, and reports how much would be fetched.
    support: full
  diff_mode:
    description: The module has no diff output.
    support: none
  idempotent:
    description: Files that were verified before are not fetched again.
    support: full
options:
  state:
    description: What to do.
    type: str
    choices: [downloaded, served, copied, absent]
    required: true
  process:
    description: File with the number of the process that serves, in a directory in which only root writes. V(absent)
      removes it.
    type: path
    default: /run/gb10-models.pid
  place:
    description: Number of this node. Nodes with different numbers begin with different files.
    type: int
    default: 0
  models:
    description:
      - The models, each with C(repo), C(commit), C(dest) and C(files), of which each has C(name), C(size), C(digest)
        and C(algorithm). The list must be the same on all nodes.
    type: list
    elements: dict
    default: []
  hub:
    description: Files to download from the hub, as C(organisation/name/file).
    type: list
    elements: str
    default: []
  peers:
    description:
      - Other nodes, each with C(name) and C(paths), of which each has the address C(to) and the address C(via) of this
        node.
    type: list
    elements: dict
    default: []
  addresses:
    description: Addresses of this node on which files are served.
    type: list
    elements: str
    default: []
  port:
    description: TCP port on which files are served.
    type: int
    default: 7420
  secret:
    description: Token of this transfer, the same on all nodes.
    type: str
    default: ""
  streams:
    description: Number of files that are downloaded, and copied, at the same time.
    type: int
    default: 4
  may_lack:
    description: Whether files may be missing afterwards, because another round follows, as in a ring.
    type: bool
    default: false
  longest_seconds:
    description: Seconds after which the process ends, whatever the peers ask for.
    type: float
    default: 86400
  progress:
    description: The key C(progress) of the former result.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Download the files that no node has
  gb10.cluster.model_share:
    state: downloaded
    models: "{{ planned.nodes[inventory_hostname].models }}"
    hub: "{{ planned.nodes[inventory_hostname].hub }}"

- name: Serve the files to the other nodes
  gb10.cluster.model_share:
    state: served
    models: "{{ planned.nodes[inventory_hostname].models }}"
    peers: "{{ planned.nodes[inventory_hostname].peers }}"
    addresses: "{{ planned.nodes[inventory_hostname].addresses }}"
    secret: "{{ transfer_token }}"

- name: Copy the others
  gb10.cluster.model_share:
    state: copied
    models: "{{ planned.nodes[inventory_hostname].models }}"
    peers: "{{ planned.nodes[inventory_hostname].peers }}"
    secret: "{{ transfer_token }}"
"""

RETURN = r"""
done:
  description: Whether nothing is left to try.
  returned: always
  type: bool
lacking:
  description: Number of files that are missing on this node.
  returned: when downloaded or copied
  type: int
progress:
  description: Bytes and seconds so far, and the files that peers do not deliver, for the next slice.
  returned: when downloaded or copied
  type: dict
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, share, store

SHOWN = 5  # reasons why files are missing
ORPHAN = 90.0  # seconds without a request of a peer after which the process ends
SLICE = 20.0  # seconds between two progress messages; the comparison of a file with its digest is not interrupted


def serve_files(options: dict[str, Any]) -> dict[str, Any]:
    """Start to serve the files of this node. Raise OSError."""
    process = Path(options["process"])
    share.stop(process)
    peers = {way["to"] for peer in options["peers"] for way in peer["paths"]}
    serving = share.Serving(share.items_of(options["models"]), peers, options["secret"])
    try:
        serving.bind(options["addresses"], options["port"])
    except OSError as error:
        where = f"Port {options['port']} can't be opened on {', '.join(options['addresses'])}: {error}"
        advice = "Another program may use it: choose another one with models_share_port"
        return {"failed": True, "msg": f"{where}. {advice}."}
    share.start(process, serving, ORPHAN, options["longest_seconds"])
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
    ended = slice_.run(wanted, options["streams"], SLICE)
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
            "longest_seconds": {"type": "float", "default": 86400},
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
            ended = share.stop(Path(options["process"]))
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
