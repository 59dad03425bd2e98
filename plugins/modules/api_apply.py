#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.apply import apply
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
        argument_spec={
            **CLUSTER_SPEC,
            "manager": {"type": "str", "required": True},
            "objects": {"type": "list", "elements": "raw", "required": True},
        },
        supports_check_mode=True,
    )
    apply(module)


if __name__ == "__main__":
    main()
