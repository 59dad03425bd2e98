#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig

try:
    import yaml

    YAML_ERROR = None
except ImportError:
    YAML_ERROR = traceback.format_exc()


def connects(server: str, timeout: float) -> str:
    """Return an empty string if a connection to the https address opens, otherwise the reason why not."""
    address = urlsplit(server)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout).close()
    except OSError as error:
        return str(error)
    return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **kubeconfig.CLUSTER_SPEC,
            "required": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    options = module.params
    path = Path(options["kubeconfig"])
    result: dict[str, Any] = {"changed": False, "reachable": False, "server": ""}
    if YAML_ERROR is not None:
        module.fail_json(msg=missing_required_lib("PyYAML"), exception=YAML_ERROR, **result)
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        result["server"] = kubeconfig.server_of(config, options["context"])
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        module.fail_json(msg=f"{path} is not a kubeconfig ({type(error).__name__}); repair or move it", **result)
    if result["server"]:
        why = connects(result["server"], options["timeout"])
        result["msg"] = f"no answer from {result['server']}: {why}" if why else f"{result['server']} answers"
        result["reachable"] = not why
    else:
        result["msg"] = f"{path} has no context {options['context']}; playbook kubernetes makes it"
    if options["required"] and not result["reachable"]:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
