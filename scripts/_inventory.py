# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge a parsed inventory into variables by host, as Ansible does for plain values. Private to the collection.

Only what needs no Ansible: YAML groups with host ranges, ``group_vars`` and ``host_vars``, and the JSON that
``ansible-inventory --list`` prints. Templates aren't evaluated; whoever needs such a value must say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_RANGE = re.compile(r"\[(?P<first>\w+):(?P<last>\w+)(?::(?P<step>\d+))?\]")


class InventoryError(ValueError):
    """The inventory isn't shaped as Ansible expects; the message says where."""


@dataclass
class Inventory:
    """Groups with their hosts, children and variables, and the variables of hosts themselves."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: dict[str, dict[str, None]] = field(default_factory=lambda: {"all": {}})
    children: dict[str, dict[str, None]] = field(default_factory=lambda: {"all": {}})
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_yaml(self, data: Any, source: str) -> None:
        """Add a YAML inventory: ``{group: {hosts, children, vars}}``."""
        if not isinstance(data, Mapping):
            raise InventoryError(f"{source}: not a mapping of groups")
        for group, body in data.items():
            self._add_group(str(group), body, source)

    def add_list(self, data: Mapping[str, Any], source: str) -> None:
        """Add what ``ansible-inventory --list`` printed."""
        meta = data.get("_meta", {})
        for host, values in (meta.get("hostvars", {}) if isinstance(meta, Mapping) else {}).items():
            self.hosts.setdefault(host, {}).update(values)
        for group, body in data.items():
            if group == "_meta":
                continue
            if not isinstance(body, Mapping):
                raise InventoryError(f"{source}: group {group} is not a mapping")
            self._declare(group)
            for host in body.get("hosts", []):
                self.members[group][host] = None
                self.hosts.setdefault(host, {})
            for child in body.get("children", []):
                self._declare(child)
                self.children[group][child] = None

    def _declare(self, group: str) -> None:
        self.members.setdefault(group, {})
        self.children.setdefault(group, {})

    def _add_group(self, group: str, body: Any, source: str) -> None:
        self._declare(group)
        if body is None:
            return
        if not isinstance(body, Mapping) or set(body) - {"hosts", "children", "vars"}:
            raise InventoryError(f"{source}: group {group} takes hosts, children and vars only")
        for name, values in _mapping(body.get("hosts"), group, "hosts", source).items():
            for host in expand_range(str(name)):
                self.members[group][host] = None
                self.hosts.setdefault(host, {}).update(_mapping(values, group, host, source))
        for child, inner in _mapping(body.get("children"), group, "children", source).items():
            self.children[group][str(child)] = None
            self._add_group(str(child), inner, source)
        self.variables.setdefault(group, {}).update(_mapping(body.get("vars"), group, "vars", source))

    def hosts_of(self, group: str) -> list[str]:
        """Return the hosts of a group and of all groups below it."""
        if group == "all":
            return list(self.hosts)
        found: dict[str, None] = {}
        for name in self._below(group):
            found.update(self.members.get(name, {}))
        return list(found)

    def _below(self, group: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        if group in above:
            raise InventoryError(f"group {group} is its own descendant")
        yield group
        for child in self.children.get(group, {}):
            yield from self._below(child, (*above, group))

    def _depth(self, group: str, above: tuple[str, ...] = ()) -> int:
        """Return how far a group is below ``all``, by the longest way, which is what Ansible ranks by."""
        if group == "all":
            return 0
        if group in above:
            raise InventoryError(f"group {group} is its own descendant")
        parents = [name for name, children in self.children.items() if group in children and name != "all"]
        return 1 + max((self._depth(parent, (*above, group)) for parent in parents), default=0)

    def merged(
        self, group: str, group_vars: Mapping[str, Any], host_vars: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return ``{host: variables}`` of a group; nearer groups win over farther ones, host over group.

        ``group_vars`` and ``host_vars`` are those of the directories; as in Ansible they win over what stands in the
        inventory itself at the same level (groups with groups, hosts with hosts).
        """
        holds = {name: set(self.hosts_of(name)) for name in self.members}
        order = sorted(self.members, key=lambda name: (self._depth(name), name))
        result = {}
        for host in self.hosts_of(group):
            mine = [name for name in order if name == "all" or host in holds[name]]
            merged: dict[str, Any] = {}
            for level in (self.variables, group_vars):
                for name in mine:
                    merged.update(level.get(name, {}))
            merged.update(self.hosts.get(host, {}))
            merged.update(host_vars.get(host, {}))
            result[host] = merged
        return result


def _mapping(value: Any, group: str, part: str, source: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InventoryError(f"{source}: {part} of group {group} is not a mapping")
    return value


def expand_range(pattern: str) -> list[str]:
    """Return the hosts of ``spark[1:4]`` or ``gpu-[a:c]``, leading zeros kept, a step allowed; else the name itself."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first.isdigit() and last.isdigit():
        width = len(first) if first.startswith("0") else 0
        items = [f"{number:0{width}d}" for number in range(int(first), int(last) + 1, step)]
    elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha():
        items = [chr(code) for code in range(ord(first), ord(last) + 1, step)]
    else:
        raise InventoryError(f"host range {pattern} can't be read")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [host for item in items for host in expand_range(f"{before}{item}{after}")]
