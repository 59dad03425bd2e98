#!/usr/bin/python

# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import bandwidth
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "host": {"type": "str", "required": True},
            "partner": {"type": "str", "required": True},
            "side": {"type": "str", "choices": ["server", "client"], "required": True},
            "program": {"type": "str", "choices": ["ib_write_bw", "ib_send_bw"], "default": "ib_write_bw"},
            "vf_index": {"type": "int", "default": 0},
            "port": {"type": "int", "default": 18515},
            "duration": {"type": "int", "default": 5},
            "half_floor": {"type": "float", "default": bandwidth.HALF_FLOOR},
            "full_floor": {"type": "float", "default": bandwidth.FULL_FLOOR},
            "sysfs_root": {"type": "path", "default": "/sys"},
        },
    )
    params = module.params
    ends = (params["host"], params["partner"])
    server, client = ends if params["side"] == "server" else (ends[1], ends[0])
    result: dict[str, Any] = {"changed": False, "msg": "", "ok": True, "measured": {}, "pair": [client, server]}
    try:
        lanes = bandwidth.lanes(
            params["plan"], params["host"], server, client, params["vf_index"], params["port"], params["sysfs_root"]
        )
        if params["side"] == "server":
            bandwidth.serve(params["program"], lanes, params["duration"])
            result["msg"] = f"{len(lanes)} servers wait for {client}"
        else:
            measured, trouble = bandwidth.measure(params["program"], lanes, params["duration"])
            good, verdict = bandwidth.judge_bandwidth(measured, params["half_floor"], params["full_floor"])
            result.update(ok=good, measured=measured, msg="\n".join([f"{client} → {server}: {verdict}", *trouble]))
    except (system.HostError, OSError) as error:
        module.fail_json(**{**result, "ok": False, "msg": system.explain(error)})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
