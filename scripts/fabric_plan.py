#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the fabric that an inventory declares, and what can't work in it, without touching a host.

    scripts/fabric_plan.py inventory/mine
    scripts/fabric_plan.py --json inventory/mine > plan.json
    ansible-inventory -i inventory/mine --list | scripts/fabric_plan.py -

Exits 0 when the fabric can be set up so, 1 when a finding is an error, 2 when the inventory can't be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from _collection import IMPORT_ROOT

sys.path.insert(0, IMPORT_ROOT)

from _inventory import Inventory, InventoryError
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors, sort_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import VARIABLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import format_plan, plan_fabric

YAML_NAMES = {".yml", ".yaml", ".json", ""}


class _Loader(yaml.SafeLoader):
    """Reads what Ansible's YAML adds: an encrypted value is kept as text that no check takes for a value."""


_Loader.add_constructor("!vault", lambda loader, node: "{{ encrypted with ansible-vault }}")
_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))  # type: ignore[arg-type]


def load(path: Path) -> Any:
    """Return the data of a YAML or JSON file."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InventoryError(f"{path}: {' '.join(str(error).split())}") from error


def read_inventory(source: str) -> dict[str, dict[str, Any]]:
    """Return ``{host: variables}`` of group gb10_nodes, from ``-``, a file or a directory."""
    inventory = Inventory()
    if source == "-":
        inventory.add_list(_json(sys.stdin.read()), "standard input")
        return inventory.merged("gb10_nodes", {}, {})
    path = Path(source)
    directory = path if path.is_dir() else path.parent
    for file in sorted(_inventory_files(path)):
        data = load(file)
        if isinstance(data, Mapping) and "_meta" in data:
            inventory.add_list(data, str(file))
        else:
            inventory.add_yaml(data, str(file))
    return inventory.merged("gb10_nodes", _named(directory / "group_vars"), _named(directory / "host_vars"))


def _json(text: str) -> dict[str, Any]:
    try:
        data: object = json.loads(text)
    except ValueError as error:
        raise InventoryError(f"standard input: not JSON ({error}); pipe `ansible-inventory --list` into it") from error
    if not isinstance(data, dict):
        raise InventoryError("standard input: not what `ansible-inventory --list` prints")
    return data


def _inventory_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in path.iterdir():
        if file.is_dir() or file.name.startswith(".") or file.suffix in {".md", ".pyc", ".bak"}:
            continue
        if file.suffix not in YAML_NAMES:
            remedy = f"run: ansible-inventory -i {path} --list | scripts/fabric_plan.py -"
            raise InventoryError(f"{file}: only YAML is read without Ansible; {remedy}")
        yield file


def _named(directory: Path) -> dict[str, dict[str, Any]]:
    """Return variables by group or host: ``NAME.yml``, ``NAME`` and ``NAME/*.yml``."""
    named: dict[str, dict[str, Any]] = {}
    for file in sorted(directory.glob("*")):
        parts = sorted(part for part in file.rglob("*") if part.is_file()) if file.is_dir() else [file]
        for part in parts:
            if part.suffix in YAML_NAMES and not part.name.startswith("."):
                data = load(part) or {}
                if not isinstance(data, Mapping):
                    raise InventoryError(f"{part}: not a mapping of variables")
                name = file.name if file.is_dir() else file.stem
                named.setdefault(name, {}).update(data)
    return named


def needed(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Return the fabric's variables by host, and a finding for each that only Ansible can evaluate."""
    findings = []
    chosen: dict[str, dict[str, Any]] = {}
    for host, variables in hosts.items():
        chosen[host] = {}
        for key in VARIABLES:
            value = variables.get(key)
            if "{{" in str(value) or "{%" in str(value):
                reason = "a template or an encrypted value, which is evaluated by Ansible only"
                remedy = "Write the value itself, or run the playbook with --tags plan."
                findings.append(
                    Finding("error", "fabric.value.template", key, value, reason, remedy, host, "inventory")
                )
            elif value is not None:
                chosen[host][key] = value
    return chosen, findings


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", help="YAML inventory file or directory, or - for `ansible-inventory --list`")
    parser.add_argument("--json", action="store_true", help="print an object with plan and findings")
    parser.add_argument(
        "--totalvfs",
        type=int,
        default=4,
        metavar="N",
        help="VFs assumed for each PF where gb10_pf_totalvfs isn't declared (default: 4, as documented for GB10)",
    )
    options = parser.parse_args(arguments)
    try:
        variables, findings = needed(read_inventory(options.inventory))
    except InventoryError as error:
        print(f"fabric_plan: {error}", file=sys.stderr)
        return 2
    for values in variables.values():
        values.setdefault("gb10_assumed_vf_count", options.totalvfs)
    plan, found = plan_fabric(variables)
    findings += found
    if options.json:
        print(json.dumps({"plan": plan.as_dict(), "findings": [f.as_dict() for f in findings]}, indent=2))
    else:
        print(format_plan(plan))
        if findings:
            print()
            for finding in sort_findings(findings):
                print(textwrap.fill(str(finding), 120, subsequent_indent="  ", break_on_hyphens=False))
    return 1 if has_errors(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
