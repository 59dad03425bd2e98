#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of docs/troubleshooting.md and docs/launch-rules.md; with ``--check`` only compare.

The tables are generated from what prints the messages: NCCL's causes, the rules of the packages of checks, and the
rules of launches.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, ROOT, run
from _generated import main

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._nccl.catalogue import CATALOGUE
from ansible_collections.gb10.cluster.plugins.plugin_utils._rules import Rules
from role_docs import table

SYMPTOMS = ROOT / "docs" / "troubleshooting.md"
LAUNCHES = ROOT / "docs" / "launch-rules.md"
RULES = ROOT / "profiles" / "rules.json"


def causes() -> str:
    """Return what NCCL's log shows, what it means, and the remedy."""
    rows = ([f"`{each.id}`", f"`{each.pattern}`", each.summary, each.remedy] for each in CATALOGUE)
    return table(["cause", "log line (a regular expression)", "what it means", "what to do"], rows)


def rules(package: str) -> str:
    """Return the rules of a package of checks, sorted by their names."""
    rows = (
        [f"`{name.partition('/')[0]}`", rule.severity, _plain(rule.reason), _plain(rule.remedy)]
        for name, rule in sorted(Rules(package).all.items())
    )
    return table(["rule", "severity", "what it means", "what to do"], rows)


def launches() -> str:
    """Return the rules of SGLang's command lines, by the part of the server that they concern."""
    every = sorted(json.loads(RULES.read_text(encoding="utf-8"))["rules"], key=lambda rule: str(rule["id"]))
    rows = (
        (f"`{rule['id']}`", rule["severity"], _keys(rule), _plain(rule["reason"]), _plain(rule["remedy"]))
        for rule in every
    )
    # Rules for different releases may say the same.
    return table(["rule", "severity", "setting", "what it means", "what to do"], dict.fromkeys(rows))


def _keys(rule: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in rule.get("keys", [rule.get("key", "")]) if name)


def _plain(text: str) -> str:
    """Return a message on one line, with its placeholders in italics."""
    line = " ".join(text.split()).replace("<", "&lt;")
    return re.sub(r"\{\{|\}\}|\{(\w+)[^}]*\}", lambda found: f"*{found[1]}*" if found[1] else found[0][0], line)


def pages() -> dict[Path, dict[str, str]]:
    """Return the generated parts of both pages."""
    checks = {name: rules(f"_{name}") for name in ("preflight", "fabric", "serving", "variables", "weights", "sweep")}
    return {SYMPTOMS: {"causes": causes(), **checks}, LAUNCHES: {"launches": launches()}}


if __name__ == "__main__":
    run(lambda: main(__doc__, pages))
