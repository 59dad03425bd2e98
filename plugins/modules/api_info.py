#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: api_info
short_description: Report whether a cluster's API can be reached, and read objects
version_added: 0.1.0
description:
  - Reads the address of a cluster from a kubeconfig and sends a request to it. Any answer counts.
  - A server that accepts the connection and stays silent does not count as reachable.
  - In check mode on hosts where nothing is installed yet, there is no API. A role uses this module to detect that case.
  - Reads objects of several kinds in one call.
author: The gb10.cluster authors (@gb10)
requirements:
  - PyYAML
  - kubernetes, for O(reads)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  required:
    description: Fail when the API can't be reached.
    type: bool
    default: true
  timeout:
    description: Seconds that the connection, its TLS handshake and the first answer may each take.
    type: float
    default: 30
  reads:
    description: Objects to read.
    type: list
    elements: dict
    default: []
    suboptions:
      resource:
        description: API version and plural name, such as V(apps/v1/statefulsets) or V(v1/services).
        type: str
        required: true
      namespace:
        description: Namespace of the objects; empty for objects of the whole cluster.
        type: str
        default: ""
      name:
        description: Name of one object; empty for all that have O(reads[].labels).
        type: str
        default: ""
      labels:
        description: Label selectors, which must all match.
        type: list
        elements: str
        default: []
      key:
        description: Key of the objects in RV(found); if it is empty, the plural name.
        type: str
        default: ""
"""

EXAMPLES = r"""
- name: Check whether the API is reachable
  gb10.cluster.api_info:
    kubeconfig: ~/.kube/config
    context: gb10
    required: "{{ not ansible_check_mode }}"
  delegate_to: localhost

- name: Read the workloads of all groups
  gb10.cluster.api_info:
    kubeconfig: ~/.kube/config
    context: gb10
    reads:
      - {resource: apps/v1/statefulsets, namespace: gb10-serving, labels: [app.kubernetes.io/name=sglang]}
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
found:
  description:
    - The objects of O(reads), by the plural name of the resource, without their C(metadata.managedFields) and without
      the data of Secrets.
    - A list is empty if no object matches, if the API does not know the resource, or if it can't be reached.
  returned: always
  type: dict
  sample: {statefulsets: []}
"""

import socket
import ssl
import traceback
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError, at_once

try:
    import yaml

    YAML_ERROR = None
except ImportError:
    YAML_ERROR = traceback.format_exc()

READ_SPEC: dict[str, Any] = {
    "resource": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": ""},
    "name": {"type": "str", "default": ""},
    "labels": {"type": "list", "elements": "str", "default": []},
    "key": {"type": "str", "default": "", "no_log": False},
}


def answers(server: str, timeout: float) -> str:
    """Return an empty string if the server at this https address answers a request, otherwise the reason why not.

    Each of connecting, the handshake and the answer may take ``timeout`` seconds. Nothing secret is sent, so the
    certificate is not checked here.
    """
    address = urlsplit(server)
    # Not create_default_context, which reads the CAs of this machine in 0.05 s.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.hostname, address.port or 443), timeout) as plain,
            context.wrap_socket(plain, server_hostname=address.hostname) as channel,
        ):
            channel.sendall(f"HEAD /version HTTP/1.1\r\nHost: {address.hostname}\r\nConnection: close\r\n\r\n".encode())
            return "" if channel.recv(1) else "it closed the connection"
    except TimeoutError:
        return f"nothing within {timeout:g} s"
    except OSError as error:
        return str(error)


def read(cluster: Cluster, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of one entry of ``reads``, without what no role needs: registered results may be printed."""
    resource = wanted["resource"]
    found = cluster.objects(resource, wanted["namespace"], wanted["name"], ",".join(wanted["labels"]))
    for item in found:
        item["metadata"].pop("managedFields", None)
        if resource == "v1/secrets":
            item.pop("data", None)
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **kubeconfig.CLUSTER_SPEC,
            "required": {"type": "bool", "default": True},
            "timeout": {"type": "float", "default": 30},
            "reads": {"type": "list", "elements": "dict", "default": [], "options": READ_SPEC},
        },
        supports_check_mode=True,
    )
    options = module.params
    path = Path(options["kubeconfig"])
    names = [wanted["key"] or wanted["resource"].rpartition("/")[2] for wanted in options["reads"]]
    result: dict[str, Any] = {"changed": False, "reachable": False, "server": "", "found": {name: [] for name in names}}
    if YAML_ERROR is not None:
        module.fail_json(msg=missing_required_lib("PyYAML"), exception=YAML_ERROR, **result)
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
        result["server"] = kubeconfig.server_of(config, options["context"])
    except (ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        module.fail_json(msg=f"{path} is not a kubeconfig ({type(error).__name__}); repair or move it", **result)
    if result["server"]:
        why = answers(result["server"], options["timeout"])
        result["msg"] = f"no answer from {result['server']}: {why}" if why else f"{result['server']} answers"
        result["reachable"] = not why
    else:
        result["msg"] = (
            f"{path} has no context {options['context']}. Playbook kubernetes makes it where it installs K3s; for an"
            " existing cluster, set gb10_kubeconfig and gb10_kube_context to what its owner gave you"
        )
    if options["required"] and not result["reachable"]:
        module.fail_json(**result)
    if names and result["reachable"]:
        try:
            cluster = Cluster(options["kubeconfig"], options["context"])
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            read_all = at_once(partial(read, cluster), options["reads"])
            for name, objects in zip(names, read_all, strict=True):
                found[name] += objects
            result["found"] = found
        except ClusterError as error:
            module.fail_json(**result | {"msg": str(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
