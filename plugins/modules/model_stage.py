#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_stage
short_description: Download or check a model's files on a node
version_added: 0.1.0
description:
  - Downloads a model from the Hugging Face Hub or from a mirror with the same API, and resumes interrupted downloads.
  - Checks the free space before the download, and each file's digest before the file gets its final name.
  - Shows the progress every O(slice_seconds), with the bytes so far, the rate and the remaining time. Downloaded files
    are kept when the connection is lost; run the module again to continue.
  - With O(source=local) nothing is downloaded and no digests are available. Every file that the model's own index names
    must then exist and have the size that its header states.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.hub, gb10.cluster.shared.storage]
attributes:
  check_mode:
    description: Downloads nothing, and reports how much would be downloaded.
    support: full
  diff_mode:
    description: The module has no diff output.
    support: none
  idempotent:
    description: Files that were verified before are not read again if their size is unchanged.
    support: full
options:
  source:
    description: V(hub) downloads what is missing, V(local) only checks that the model is complete.
    type: str
    choices: [hub, local]
    default: hub
  repo:
    description: The repository, C(organisation/name).
    type: str
    required: true
  revision:
    description: Branch, tag or commit.
    type: str
    default: main
  dest:
    description: Directory for the files.
    type: path
    required: true
  slice_seconds:
    description: Seconds between two progress messages.
    type: float
    default: 25
"""

EXAMPLES = r"""
- name: Download the model to every node
  gb10.cluster.model_stage:
    repo: google/gemma-4-31B-it
    dest: /var/lib/gb10/models/google--gemma-4-31B-it
    token: "{{ sglang_hf_token }}"
  timeout: 86400

- name: Check that a copied model is complete
  gb10.cluster.model_stage:
    source: local
    repo: google/gemma-4-31B-it
    dest: /var/lib/gb10/models/google--gemma-4-31B-it
"""

RETURN = r"""
done:
  description: Whether the model is complete and verified.
  returned: always
  type: bool
commit:
  description: The commit of the staged files; empty if it is unknown.
  returned: always
  type: str
missing_bytes:
  description: Number of bytes still to download.
  returned: always
  type: int
total_bytes:
  description: Size of the whole model in bytes.
  returned: always
  type: int
msg:
  description: The progress, or what is wrong and what to do.
  returned: always
  type: str
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, store

SHOWN_FAULTS = 5


def stage_from_hub(options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Return the module's result; raise ListingError, FetchError or OSError."""
    directory, repo = Path(options["dest"]), options["repo"]
    hub = fetch.Hub(options["url"], options["token"])
    commit, files = store.parse_listing(hub.listing(repo, options["revision"]), options["skip"])
    marker = store.read_marker(directory)
    recorded: dict[str, str] = dict(marker.get("files") or {})
    lacking = store.missing(directory, files, recorded)
    total = sum(file.size for file in files)
    to_come = store.needed_bytes(directory, lacking)
    result: dict[str, Any] = {
        "changed": False,
        "done": not lacking,
        "commit": commit,
        "missing_bytes": to_come,
        "total_bytes": total,
    }
    if not lacking and marker.get("commit") == commit and marker.get("complete"):
        return result | {"msg": f"{repo} is complete: {store.human(total)} in {directory}."}
    free, reserve = k3s.disk_space(directory, options["reserve_gb"])
    if to_come + reserve > free:
        raise fetch.FetchError(
            f"{repo} needs {store.human(to_come)} more in {directory}, where {store.human(free)} are free and"
            f" {store.human(reserve)} must stay free. Make room there, or set another directory"
        )
    if check_mode:
        return result | {"changed": True, "msg": f"{repo}: {store.human(to_come)} would be downloaded to {directory}."}
    directory.mkdir(parents=True, exist_ok=True)

    def verified(file: store.File) -> None:
        recorded[file.name] = file.digest
        store.write_marker(directory, repo, commit, recorded, complete=False)

    started = time.monotonic()
    done = fetch.fetch_all(hub, repo, commit, lacking, directory, options["slice_seconds"], verified)
    left = store.needed_bytes(directory, store.missing(directory, files, recorded))
    if done:
        store.drop_former(directory, files, recorded)
        store.write_marker(directory, repo, commit, recorded, complete=True)
    message = f"{repo}: {store.progress(total, left, to_come - left, time.monotonic() - started)} in {directory}."
    return result | {"changed": True, "done": done, "missing_bytes": left, "msg": message}


def check_local(options: dict[str, Any]) -> dict[str, Any]:
    """Return the module's result for a model that the user copied to the node; raise FetchError or OSError."""
    directory = Path(options["dest"])
    found = store.faults(directory)
    if found:
        more = f" and {len(found) - SHOWN_FAULTS} more" if len(found) > SHOWN_FAULTS else ""
        raise fetch.FetchError(
            f"{directory} is not a complete model: {', '.join(found[:SHOWN_FAULTS])}{more}. Copy it there again"
        )
    total = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    commit = str(store.read_marker(directory).get("commit") or "")
    message = f"{options['repo']} is complete: {store.human(total)} in {directory}."
    return {"changed": False, "done": True, "commit": commit, "missing_bytes": 0, "total_bytes": total, "msg": message}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **fetch.HUB_SPEC,
            **fetch.STORAGE_SPEC,
            "source": {"type": "str", "default": "hub", "choices": ["hub", "local"]},
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "main"},
            "dest": {"type": "path", "required": True},
            "slice_seconds": {"type": "float", "default": 25},
        },
        supports_check_mode=True,
    )
    empty: dict[str, Any] = {"changed": False, "done": False, "commit": "", "missing_bytes": 0, "total_bytes": 0}
    local = module.params["source"] == "local"
    try:
        module.exit_json(**(check_local(module.params) if local else stage_from_hub(module.params, module.check_mode)))
    except (fetch.FetchError, store.ListingError) as error:
        module.fail_json(msg=f"{module.params['repo']} can't be staged: {error}", **empty)
    except PermissionError as error:
        advice = f"Set ansible_become: true, or make {module.params['dest']} writable for the user"
        module.fail_json(msg=f"{module.params['repo']} can't be staged: {error}. {advice}.", **empty)
    except OSError as error:
        hub = f"Check that this node reaches {module.params['url']}, and run again: files that are there are kept"
        advice = "Check that the files can be read on this node" if local else hub
        module.fail_json(msg=f"{module.params['repo']} can't be staged: {error}. {advice}.", **empty)


if __name__ == "__main__":
    main()
