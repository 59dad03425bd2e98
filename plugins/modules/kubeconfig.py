#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig

try:
    import yaml

    YAML_ERROR = None
except ImportError:
    YAML_ERROR = traceback.format_exc()


def write(path: Path, text: str) -> None:
    """Replace the file in one step; other users cannot read it at any moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
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
    options = module.params
    path = Path(options["path"])
    result: dict[str, Any] = {"changed": False, "path": str(path), "contexts": []}
    if YAML_ERROR is not None:
        module.fail_json(msg=missing_required_lib("PyYAML"), exception=YAML_ERROR, **result)
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
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        module.fail_json(
            msg=f"{path} or the server's file is not a kubeconfig ({type(error).__name__}); repair or move the file",
            **result,
        )
    except OSError as error:
        module.fail_json(msg=explain(error, path), **result)
    loose = path.is_file() and path.stat().st_mode & 0o077 != 0
    result.update(
        changed=wanted != existing or loose,
        contexts=names(wanted),
        diff={"before": f"{names(existing)}\n", "after": f"{names(wanted)}\n"},
    )
    if result["changed"] and not module.check_mode:
        try:
            write(path, yaml.safe_dump(wanted, sort_keys=False))
        except OSError as error:
            module.fail_json(msg=explain(error, path), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
