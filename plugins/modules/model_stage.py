#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_stage
short_description: Check that a model which was copied to a node is complete
version_added: 0.1.0
description:
  - Every file that the model's own index names must exist and have the size that its header states. A copied model has
    no digests.
  - Role models downloads models.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  repo:
    description: The repository, C(organisation/name), or the directory, for the message.
    type: str
    required: true
  dest:
    description: Directory with the files.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Check that a copied model is complete
  gb10.cluster.model_stage:
    repo: google/gemma-4-31B-it
    dest: /var/lib/gb10/models/google--gemma-4-31B-it
"""

RETURN = r"""
msg:
  description: The size of the model, or what is missing and what to do.
  returned: always
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._models import store

SHOWN_FAULTS = 5


def check(directory: Path) -> tuple[str, bool]:
    """Return what is there, and whether it is a complete model; raise OSError."""
    if not (found := store.faults(directory)):
        total = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        return f"is complete: {store.human(total)} in {directory}.", True
    more = f" and {len(found) - SHOWN_FAULTS} more" if len(found) > SHOWN_FAULTS else ""
    wrong = f"{directory} is not a complete model: {', '.join(found[:SHOWN_FAULTS])}{more}"
    return f"can't be served: {wrong}. Copy it there again.", False


def main() -> None:
    module = AnsibleModule(
        argument_spec={"repo": {"type": "str", "required": True}, "dest": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    repo = module.params["repo"]
    try:
        text, complete = check(Path(module.params["dest"]))
    except OSError as error:
        module.fail_json(msg=f"{repo} can't be read: {error}. Set ansible_become: true, or check the disk.")
    if not complete:
        module.fail_json(msg=f"{repo} {text}")
    module.exit_json(changed=False, msg=f"{repo} {text}")


if __name__ == "__main__":
    main()
