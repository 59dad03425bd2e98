#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: api_info
short_description: Report whether a cluster's API can be reached
version_added: 0.1.0
description:
  - Reads the address of a cluster from a kubeconfig and opens a connection to it.
  - In check mode on hosts where nothing is installed yet, there is no API. A role uses this module to detect that case.
author: The gb10.cluster authors (@gb10)
requirements:
  - PyYAML
extends_documentation_fragment: [gb10.cluster.cluster, gb10.cluster.readonly]
options:
  required:
    description: Fail when the API can't be reached.
    type: bool
    default: true
  timeout:
    description: Seconds to wait for the connection.
    type: float
    default: 5
"""

EXAMPLES = r"""
- name: Check whether the API is reachable
  gb10.cluster.api_info:
    kubeconfig: ~/.kube/config
    context: gb10
    required: "{{ not ansible_check_mode }}"
  delegate_to: localhost
"""

RETURN = r"""
reachable:
  description: Whether a connection could be opened.
  returned: always
  type: bool
server:
  description: The API's address in the kubeconfig, or an empty string.
  returned: always
  type: str
"""

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
