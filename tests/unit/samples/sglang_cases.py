# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for the tests of the SGLang check: the collection's data and a short way to run the check."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, Report, check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Facts, Setting

ROOT = Path(__file__).resolve().parents[3]
PROFILES = ROOT / "plugins" / "profiles"
KNOWLEDGE = Knowledge.load(PROFILES)
LATEST = str(KNOWLEDGE.history.catalogues[-1].version)
FACTS = frozenset(field.name for field in fields(Facts))


def ask(version: str, line: str, **about: Any) -> Report:
    """Judge ``--model-path m`` and the given flags; keywords are fields of Facts or Setting."""
    facts = Facts(**{key: about.pop(key) for key in FACTS if key in about})
    return check(KNOWLEDGE, version, ["--model-path", "m", *shlex.split(line)], facts, Setting(**about))


def rules_of(report: Report, severity: str | None = None) -> set[str]:
    """Return the ids of a report's findings."""
    return {finding.rule for finding in report.findings if severity in (None, finding.severity)}
