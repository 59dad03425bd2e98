# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an inventory for the hosts of the play, and plan its fabric."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    has_errors,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import draw, judge, ports_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.inventory import (
    Machine,
    Refused,
    compose,
    render,
    twins,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import format_plan, plan_fabric


class _Dumper(yaml.SafeDumper):
    """Marks text with a brace, which Ansible would take for a template, with ``!unsafe``."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("!unsafe" if "{" in text else "tag:yaml.org,2002:str", text)
)


def _flow(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


class ActionModule(ControllerAction):
    """Reads the facts of the play's hosts; writes files only into a directory that does not exist or is empty."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inventory and its plan; failed if the plan has errors, which must be corrected in the files."""
        path = Path(options["path"])
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise AnsibleActionFail(
                f"{path} exists, and an inventory is never overwritten. Give another inventory_new_path, or remove it."
            )
        hosts = task_vars["ansible_play_hosts_all"]
        known = {host: task_vars["hostvars"][host] for host in hosts}
        unread = [host for host in hosts if "gb10_cabling" not in (known[host].get("ansible_facts") or {})]
        if unread:
            raise AnsibleActionFail(
                f"{', '.join(unread)}: not read. Correct the errors above, or leave these hosts out."
            )
        try:
            machines = [
                Machine.of(plain(known[host].get("ansible_host") or host), plain(known[host]["ansible_facts"]))
                for host in hosts
            ]
        except Refused as error:
            raise AnsibleActionFail(
                f"{error}; nothing was written, because Ansible may execute what an inventory says. Find out who "
                "changed the host, or leave it out."
            ) from None
        if same := twins(machines):
            raise AnsibleActionFail(
                f"{'; '.join(same)}: addresses of the same machine, which would get two node ids. Give one of them."
            )
        inventory = compose(machines)
        files = render(inventory, _flow)
        plan, findings = plan_fabric(inventory.variables())
        if not self._task.check_mode:
            for name, text in files.items():
                target = path / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
        by_address = {own["ansible_host"]: name for name, own in inventory.hosts.items()}
        ports = ports_of({by_address[machine.address]: machine.ports for machine in machines})
        told = [
            f"{path} {'would be' if self._task.check_mode else 'is'} written.",
            *draw(ports),
            format_plan(plan),
            shown([*judge(ports, plan), *findings]),
        ]
        text = "\n".join(filter(None, told))
        result = {"changed": True, "path": str(path), "msg": text}
        if has_errors(findings):
            return result | {"failed": True, "findings": [finding.as_dict() for finding in findings]}
        return result | {"files": files}
