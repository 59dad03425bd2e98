# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that no role reads what another role registered: a playbook passes it as an option, or a module sets a fact."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"
READS = ("defaults", "handlers", "tasks", "templates", "vars")


def registered(content: Any) -> Iterator[str]:
    """Return the names that tasks register, also those in blocks."""
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, dict):
            if isinstance(item.get("register"), str):
                yield item["register"]
            for value in item.values():
                yield from registered(value)


def test_no_role_reads_a_register_of_another_role() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for path in sorted([*ROLES.glob("*/tasks/*.yml"), *ROLES.glob("*/handlers/*.yml")]):
        for name in registered(yaml.safe_load(path.read_text(encoding="utf-8"))):
            owners[name].add(path.relative_to(ROLES).parts[0])
    assert len(owners) > 50
    found = []
    for path in sorted(path for kind in READS for path in ROLES.glob(f"*/{kind}/**/*") if path.is_file()):
        role = path.relative_to(ROLES).parts[0]
        code = re.sub(r"(?m)^\s*#.*$", "", path.read_text(encoding="utf-8"))
        found += [f"{path}: {word}" for word in set(re.findall(r"\w+", code)) if role not in owners.get(word, {role})]
    assert found == []
