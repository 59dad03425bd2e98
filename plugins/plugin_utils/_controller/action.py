# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions that run on the controller have in common. Private to the collection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, format_findings

from .._sweep import journal


class ControllerAction(ActionBase):
    """An action that needs no connection: it validates its options by ``SPEC`` and returns what ``act`` returns."""

    _requires_connection = False
    SPEC: ClassVar[dict[str, dict[str, Any]]]

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the task. Raise AnsibleActionFail for options that don't fit."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        options = self.validate_argument_spec(self.SPEC)[1]  # type: ignore[no-untyped-call]
        return result | self.act(options, task_vars or {})

    @abstractmethod
    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the task did, by its validated options."""


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a sweep's journal, none if there is none. Raise AnsibleActionFail for a damaged one."""
    try:
        return journal.read(Path(path)).records
    except journal.JournalDamaged as error:
        raise AnsibleActionFail(str(error)) from error


def plan_result(
    what: str, failed: bool, findings: Sequence[Finding], facts: Mapping[str, Any], done: str
) -> dict[str, Any]:
    """Return the result of planning ``what``: facts and warnings when it worked, else every finding and no fact."""
    return {
        "changed": False,
        "failed": failed,
        "findings": [finding.as_dict() for finding in findings],
        "ansible_facts": {} if failed else dict(facts),
        "warnings": [] if failed else [str(finding) for finding in findings if finding.severity == "warning"],
        "msg": f"{what} can't be planned; nothing was changed.\n{format_findings(findings)}" if failed else done,
    }
