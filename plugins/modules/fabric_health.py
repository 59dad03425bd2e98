#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_health
short_description: Compare links and error counters with the previous run
version_added: 0.1.0
description:
  - Reads how often the link of each physical function changed, its speed, and the error counters of all RDMA devices.
  - Compares them with the previous run since the host started, and saves them for the next run.
  - Needs root on the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.sysfs]
attributes:
  check_mode:
    description: Compares, and does not save what it read.
    support: full
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
  idempotent:
    description: Changes nothing but O(path), which is no setting of the host.
    support: full
options:
  path:
    description:
      - File in which the snapshot is saved. A restart of the host sets the counters to zero, so the file must not
        survive a restart.
    type: path
    default: /run/gb10-fabric-health.json
"""

EXAMPLES = r"""
- name: Compare links and error counters with the previous run
  gb10.cluster.fabric_health:
"""

RETURN = r"""
seconds:
  description: Seconds since the previous run; V(none) if there was none since the host started.
  returned: always
  type: int
findings:
  description: What happened since then, each with C(rule), C(key), C(value), C(reason) and C(remedy).
  returned: always
  type: list
  elements: dict
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    Rule,
    Rules,
    format_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.physical_functions import read_link, read_pfs
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rdma import ERRORS, SCRIPT, delta, parse_counters

RULES = Rules(
    {
        "health.link": Rule(
            "the link went down or came up this many times since the previous run",
            "Reseat or replace the cable, unless somebody unplugged it, restarted the other end or changed the port.",
            severity="warning",
        ),
        "health.speed": Rule(
            "the speed in Mb/s was {before} in the previous run",
            "Reseat the cable, and compare the switch port's speed.",
            severity="warning",
        ),
        "health.errors": Rule(
            "errors, drops or retransmissions since the previous run; RDMA slows down with them",
            "Check the cable, and on a switch the lossless class (docs/fabric.md).",
            severity="warning",
        ),
    }
)


def snapshot(root: Path, counted: str) -> dict[str, Any]:
    """Return the links of the ports and the counters of RDMA devices; ``counted`` is what counters.SCRIPT prints."""
    links = {pf.name: read_link(root, pf.name) for pf in read_pfs(str(root))}
    return {"links": links, "counters": parse_counters(counted)["rdma"]}


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what happened between two snapshots since the same start of the host."""
    for port, link in now["links"].items():
        old = before["links"].get(port, link)
        changes = (link["carrier_changes"] or 0) - (old["carrier_changes"] or 0)
        if changes:
            yield RULES.finding("health.link", changes, key=port)
        if link["speed"] != old["speed"] and min(link["speed"] or -1, old["speed"] or -1) > 0:
            yield RULES.finding("health.speed", link["speed"], key=port, before=old["speed"])
    for device, counters in delta(before["counters"], now["counters"]).items():
        errors = {name: counters[name] for name in ERRORS if counters.get(name)}
        if errors:
            found = ", ".join(f"{name} +{count}" for name, count in errors.items())
            yield RULES.finding("health.errors", found, key=device)


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
