#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the fabric that an inventory declares, with all problems, without connecting to a host.

    scripts/fabric_plan.py inventory/mine
    scripts/fabric_plan.py --json inventory/mine > plan.json
    ansible-inventory -i inventory/mine --list | scripts/fabric_plan.py -

The ansible-core of the Python that runs this script reads the inventory; with ``-`` Ansible is not needed. The exit
status is 0 if the fabric can be set up, 1 if a finding is an error, and 2 if the inventory can't be read.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, columns, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import render_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import K3S_VARIABLES, VARIABLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import format_plan, plan_fabric

GROUP = "gb10_nodes"
OWN = "ansible_collections.gb10.cluster.plugins.plugin_utils"
FILES = f"{OWN}._inventory.files"
INVENTORY = Rules("_fabric", "inventory")
STRICT = {"ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true", "ANSIBLE_NOCOLOR": "true"}
"""Make Ansible fail on unreadable files, which it skips by default."""


class InventoryError(ValueError):
    """The inventory can't be read; the message says why and what to do."""


def list_inventory(path: Path) -> str:
    """Return the output of ``ansible-inventory --list`` for an inventory of any kind."""
    if find_spec("ansible") is None:
        raise InventoryError(
            f"{sys.executable} has no ansible-core, which reads inventories. Run `make venv` and then this script with"
            " .venv/bin/python, or pipe `ansible-inventory -i INVENTORY --list` into it and give - as the inventory."
        )
    if not path.exists():
        raise InventoryError(f"{path}: this file or directory does not exist. Give the path of your inventory.")
    # It needs Ansible, which is not needed to read standard input.
    has_password = import_module(f"{OWN}._controller.command").has_password()
    if wrong := import_module(FILES).check_text([str(path)], has_password):
        raise InventoryError(f"{path}: Ansible can't read it.\n{render_findings(wrong, columns())}")
    command = [sys.executable, "-m", "ansible", "inventory", "-i", str(path), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | STRICT)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("[", "Origin: /"))]
        raise InventoryError("\n".join([f"{path}: Ansible can't read it. Correct the place that it names:", *said]))
    return done.stdout


def unread(path: Path, listing: Mapping[str, Any]) -> list[Finding]:
    """Return a finding for each file of variables that Ansible does not read."""
    directory = path if path.is_dir() else path.parent
    found: list[Finding] = import_module(FILES).check_files([directory], listing, hosts_of(listing, "all"))
    return found


def read_inventory(source: str) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Return ``{host: variables}`` of group gb10_nodes, and what is unread, from ``-`` or the path of an inventory."""
    text = sys.stdin.read() if source == "-" else list_inventory(Path(source))
    try:
        listing = json.loads(text)
        hostvars = listing["_meta"]["hostvars"]
        hosts = {host: hostvars.get(host, {}) for host in hosts_of(listing, GROUP)}
        return hosts, [] if source == "-" else unread(Path(source), listing)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"not what `ansible-inventory --list` prints ({type(error).__name__}: {error})"
        raise InventoryError(f"standard input: {reason}; pipe `ansible-inventory --list` into it") from error


def hosts_of(listing: Mapping[str, Any], group: str) -> list[str]:
    """Return the hosts of a group and of its child groups, each once."""
    body = listing.get(group, {})
    below = [host for child in body.get("children", ()) for host in hosts_of(listing, child)]
    return list(dict.fromkeys([*body.get("hosts", ()), *below]))


def needed(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Return the fabric's variables by host, and a finding for each that only Ansible can evaluate."""
    findings = []
    chosen: dict[str, dict[str, Any]] = {}
    for host, variables in hosts.items():
        chosen[host] = {}
        for key in (*VARIABLES, *K3S_VARIABLES):
            value = variables.get(key)
            if any(mark in str(value) for mark in ("{{", "{%", "__ansible_vault")):
                if key in K3S_VARIABLES:
                    continue
                findings.append(INVENTORY.finding("fabric.value.template/outside", value, host, key=key))
            elif value is not None:
                chosen[host][key] = value
    return chosen, findings


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", help="inventory file or directory, or - for `ansible-inventory --list`")
    parser.add_argument("--json", action="store_true", help="print an object with plan and findings")
    options = parser.parse_args(arguments)
    try:
        hosts, lost = read_inventory(options.inventory)
        variables, findings = needed(hosts)
    except InventoryError as error:
        print(f"fabric_plan: {error}", file=sys.stderr)
        return 2
    for values in variables.values():
        values.setdefault("gb10_assumed_vf_count", 4)  # as documented for GB10, if gb10_pf_totalvfs isn't declared
    plan, found = plan_fabric(variables)
    # Without the variables of an unread file, the plan only reports what follows from it.
    findings = lost if has_errors(lost) else [*lost, *findings, *found]
    if options.json:
        print(json.dumps({"plan": plan.as_dict(), "findings": [f.as_dict() for f in findings]}, indent=2))
    else:
        shown = [] if has_errors(lost) else [format_plan(plan)]
        print("\n\n".join([*shown, *([render_findings(findings, columns())] if findings else [])]))
    return 1 if has_errors(findings) else 0


if __name__ == "__main__":
    run(main)
