#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubeconfig
short_description: Add one cluster to a kubeconfig without changing the others
version_added: 0.1.0
description:
  - Adds the cluster of a K3s server to a kubeconfig under its own name, with the address by which others reach it.
  - Entries of other clusters and the current context do not change. The file is replaced in one step, with mode 0600.
  - Run it on the controller.
author: The gb10.cluster authors (@gb10)
requirements:
  - PyYAML
attributes:
  check_mode:
    description: Reports what would change and writes nothing.
    support: full
  diff_mode:
    description: Shows the names of the contexts before and after, never their credentials.
    support: partial
options:
  path:
    description: The kubeconfig to change.
    type: path
    required: true
  context:
    description: Name for the context, the cluster and the user.
    type: str
    required: true
  content:
    description: Text of the kubeconfig that the server wrote. Required with O(state=present).
    type: str
  server:
    description: The address at which the controller reaches the API. Required with O(state=present).
    type: str
  state:
    description: Whether the cluster must be in the file.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Add the cluster to the kubeconfig
  gb10.cluster.kubeconfig:
    path: ~/.kube/config
    context: gb10
    server: https://10.99.0.10:6443
    content: "{{ slurped.content | b64decode }}"
  delegate_to: localhost
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
"""

import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig

try:
    import yaml

    YAML_ERROR = None
except ImportError:
    YAML_ERROR = traceback.format_exc()


PATIENCE_S = 10


class Locked(RuntimeError):
    """Another program changes the file; the text names its lock."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other run and no kubectl change the file from the reading to the writing; raise Locked or OSError.

    kubectl creates the same file meanwhile (lockFile in k8s.io/client-go/tools/clientcmd/config.go).
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock, deadline = Path(f"{path}.lock"), time.monotonic() + PATIENCE_S
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                raise Locked(
                    f"{lock} exists, so another program changes {path}, which is unchanged. Run this again. If no such"
                    f" program runs any more, rm {lock}"
                ) from None
            time.sleep(0.1)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Replace the file in one step; other users cannot read it at any moment."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def explain(error: OSError, path: Path) -> str:
    """Return why the file cannot be read or written, and what to do."""
    return (
        f"{error.filename or path}: {error.strerror}. The context is kept in {path} as the user who runs Ansible: let"
        f" this user write there, for example with sudo chown $USER {path}, or set gb10_kubeconfig to another file."
    )


def names(config: kubeconfig.Config | None) -> list[str]:
    """Return the names of the contexts."""
    return [entry["name"] for entry in (config or {}).get("contexts") or []]


def compare(module: Any, path: Path, result: dict[str, Any]) -> kubeconfig.Config | None:
    """Return what the file should contain, and fill in the result.

    Raise OSError. End the module for what is no kubeconfig.
    """
    options = module.params
    try:
        existing = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        if options["state"] == "absent":
            wanted = kubeconfig.removed(existing, options["context"]) if existing else None
        else:
            source = yaml.safe_load(options["content"])
            entries = kubeconfig.renamed(source, options["context"], options["server"])
            wanted = kubeconfig.merged(existing, entries)
    except kubeconfig.Refused as error:
        module.fail_json(
            msg=f"The kubeconfig of the server is refused: {error}; {path} is unchanged. K3s writes nothing"
            " else, so find out who changed the file on the server.",
            **result,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        module.fail_json(
            msg=f"{path} or the server's file is not a kubeconfig ({type(error).__name__}); repair or move the file",
            **result,
        )
    loose = path.is_file() and path.stat().st_mode & 0o077 != 0
    result.update(
        changed=wanted != existing or loose,
        diff={"before": f"{names(existing)}\n", "after": f"{names(wanted)}\n"},
    )
    return wanted


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "context": {"type": "str", "required": True},
            "content": {"type": "str", "no_log": True},
            "server": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["content", "server"])],
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    result: dict[str, Any] = {"changed": False, "path": str(path)}
    if YAML_ERROR is not None:
        module.fail_json(msg=missing_required_lib("PyYAML"), exception=YAML_ERROR, **result)
    try:
        compare(module, path, result)
        if result["changed"] and not module.check_mode:
            with locked(path):
                wanted = compare(module, path, result)
                write(path, yaml.safe_dump(wanted, sort_keys=False))
    except (Locked, OSError) as error:
        told = str(error) if isinstance(error, Locked) else explain(error, path)
        module.fail_json(**{**result, "changed": False, "msg": told})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
