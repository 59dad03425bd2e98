#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_stock_info
short_description: Read what a node has of some models, and what it needs to get the rest
version_added: 0.1.0
description:
  - Returns the verified and the partial files of each model, the disk, the fabric addresses that are on the host now,
    and the list of the model's files if this node reaches the hub.
  - The plan of a transfer, C(gb10.cluster.model_share_plan), needs this of every node.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.hub, gb10.cluster.shared.storage, gb10.cluster.shared.readonly]
options:
  path:
    description: Directory that contains one directory per model.
    type: path
    required: true
  models:
    description: The models, each with C(repo) and C(revision).
    type: list
    elements: dict
    required: true
  ports:
    description: Planned VFs and PFs of this node, of which those with C(address) and C(prefix) are examined.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read what every node has
  gb10.cluster.model_stock_info:
    path: /srv/models
    models: [{repo: google/gemma-4-31B-it, revision: main}]
    ports: "{{ ansible_facts['gb10_fabric_plan'].hosts[inventory_hostname].vfs }}"
  register: stock
"""

RETURN = r"""
stock:
  description: C(disk), C(addresses) and C(models).
  returned: success
  type: dict
"""

import socket
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, store

# A node that does not reach the hub needs this long to say so; another one may download for it.
TIMEOUT = 15
# The ends of the names of files that are not the model's.
OWN = (store.MARKER, store.PART)


def is_here(address: str) -> bool:
    """Return whether an address is one of this host's, outside of pods."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def read_model(options: dict[str, Any], repo: str, revision: str) -> dict[str, Any]:
    """Return what this node has of a model, and the hub's listing or the reason why there is none."""
    dest = Path(options["path"]) / repo.replace("/", "--")
    model: dict[str, Any] = {
        "dest": str(dest),
        "commit": "",
        "complete": False,
        "held": {},
        "parts": {},
        "listing": None,
        "error": "",
    }
    try:
        fetch.check_repo(repo)
    except fetch.FetchError as error:
        # Another directory has this path, and may have many files.
        return model | {"error": str(error)}
    marker = store.read_marker(dest)
    recorded = dict(marker.get("files") or {})
    model["held"] = {
        name: {"digest": recorded.get(name, ""), "size": path.stat().st_size}
        for path in dest.rglob("*")
        # A record without a digest is that of a damaged file.
        if path.is_file() and recorded.get(name := str(path.relative_to(dest)), not name.endswith(OWN))
    }
    model["parts"] = {
        str(path.relative_to(dest))[: -len(store.PART)]: path.stat().st_size for path in dest.rglob(f"*{store.PART}")
    }
    model |= {"commit": str(marker.get("commit") or ""), "complete": bool(marker.get("complete"))}
    try:
        hub = fetch.Hub(options["url"], options["token"], TIMEOUT)
        commit, files = store.parse_listing(hub.listing(repo, revision), options["skip"])
        model["listing"] = {"commit": commit, "files": [vars(file) for file in files]}
    except (OSError, ValueError, fetch.FetchError) as error:
        model["error"] = str(error)
    return model


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **fetch.HUB_SPEC,
            **fetch.STORAGE_SPEC,
            "path": {"type": "path", "required": True},
            "models": {"type": "list", "elements": "dict", "required": True},
            "ports": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    addresses = [f"{port['address']}/{port['prefix']}" for port in options["ports"] if port.get("address")]
    try:
        free, reserve = k3s.disk_space(Path(options["path"]), options["reserve_gb"])
        stock = {
            "disk": {"path": options["path"], "free_bytes": free, "reserve_bytes": reserve},
            "addresses": [address for address in addresses if is_here(address.partition("/")[0])],
            "models": {
                model["repo"]: read_model(options, model["repo"], model["revision"]) for model in options["models"]
            },
        }
    except OSError as error:
        module.fail_json(msg=f"The models can't be read: {error}. Set ansible_become: true, and check the disk.")
    module.exit_json(changed=False, stock=stock)


if __name__ == "__main__":
    main()
