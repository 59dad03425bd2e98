#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check.health import compare, snapshot
from ansible_collections.gb10.cluster.plugins.module_utils._rdma.counters import SCRIPT


def main() -> None:
    """Compare a snapshot with the saved one, and save it."""
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "path": {"type": "path", "default": "/run/gb10-fabric-health.json"},
        },
        supports_check_mode=True,
    )
    root, saved = module.params["sysfs_root"], Path(module.params["path"])
    _status, counted, _errors = module.run_command(["/bin/sh", "-c", SCRIPT, "sh", root, root], check_rc=True)
    now = snapshot(Path(root), counted)
    try:
        before = json.loads(saved.read_text(encoding="utf-8"))
        seconds = round(time.time() - before["time"])
        findings = list(compare(before, now))
    except FileNotFoundError:
        seconds, findings = None, []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        module.fail_json(
            changed=False, msg=f"{saved} is not a snapshot of this module ({error!r}). Remove it and run again."
        )
    if not module.check_mode:
        try:
            saved.write_text(json.dumps({**now, "time": time.time()}), encoding="utf-8")
        except OSError as error:
            module.fail_json(changed=False, msg=f"the snapshot cannot be saved for the next run: {error}")
    since = "the first snapshot since the host started" if seconds is None else f"nothing happened in {seconds} s"
    said = format_findings(findings) or f"{len(now['links'])} ports: {since}"
    module.exit_json(changed=False, seconds=seconds, findings=[each.as_dict() for each in findings], msg=said)


if __name__ == "__main__":
    main()
