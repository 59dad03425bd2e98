# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules whose sentences are data: a package of checks has them in its ``rules.yml``, by the names of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

# Read the collection's own YAML files.


def read_yaml(path: Path) -> Any:
    """Parse one of these files."""
    return load_yaml(path.read_text(encoding="utf-8"))


def load_yaml(text: str) -> Any:
    """Parse such a text. With libyaml it takes a tenth of the time: 0.27 s for all rules without it."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@dataclass(frozen=True)
class Rule:
    """What a finding says: the key, why it is a problem and what to do, with the values of a case in braces.

    ``provider`` is the only provider of Kubernetes that the rule is about, empty for any; ``source`` says who saw it.
    """

    reason: str
    remedy: str
    key: str = ""
    severity: Severity = "error"
    provider: str = ""
    source: str = ""


@cache
def _load(package: str) -> dict[str, Rule]:
    """Read the rules of a package of plugin_utils. A name may have several cases, each called ``name/case``."""
    rules = read_yaml(Path(__file__).parents[1] / package / "rules.yml")
    return {name: Rule(**entry) for name, entry in rules.items()}


@dataclass(frozen=True)
class Rules:
    """Makes findings from the rules of a package; ``source`` is the origin of what they are about."""

    package: str
    source: str = ""

    @property
    def all(self) -> dict[str, Rule]:
        return _load(self.package)

    def finding(self, name: str, value: Any, where: str = "", /, **words: Any) -> Finding:
        """Return the finding of a rule about one value; ``words`` are the values for the rule's key and sentences.

        ``key`` and ``severity`` among them replace those of the rule.
        """
        rule = self.all[name]
        words = {"value": value, "severity": rule.severity, **words}
        key = words.setdefault("key", rule.key.format(**words))
        reason, remedy = rule.reason.format(**words), rule.remedy.format(**words)
        source = rule.source or self.source
        return Finding(words["severity"], name.partition("/")[0], key, value, reason, remedy, where, source)
