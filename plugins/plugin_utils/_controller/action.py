# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class and the results of actions that run on the controller."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from errno import EACCES, ENOSPC, EPERM, EROFS
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    format_findings,
    merge_places,
)
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import load

from .._screen.screen import counted, render_findings, render_in_order
from .last_word import hold, tell, visible, width
from .options import documented_spec, role_options

__all__ = ["ControllerAction", "explain", "plan_result", "refusal", "tell"]


class ControllerAction(ActionBase):
    """An action that needs no connection: it validates its options and returns what ``act`` returns.

    Its options are those in the documentation of the module of the same name and, with ``ROLE``, those of that role,
    named without the role's prefix. The task must then be one of the role.
    """

    _requires_connection = False
    ROLE: ClassVar[str] = ""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the task. Raise AnsibleActionFail for invalid options."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        spec = documented_spec(type(self).__module__.rpartition(".")[2])
        options: dict[str, Any] = self.validate_argument_spec(spec)[1]  # type: ignore[no-untyped-call]
        if self.ROLE:
            options |= role_options(self.ROLE, task_vars or {}, self._templar.template)
        try:
            made = self.act(options, task_vars or {})
        except OSError as error:
            if not (message := explain(error)):
                raise
            raise AnsibleActionFail(message) from None
        made = result | (refusal(made) if made.get("failed") and made.get("findings") else made)
        # Ansible prints both as they are.
        texts = {key: visible(made[key]) for key in ("msg",) if isinstance(made.get(key), str)}
        warnings = {"warnings": list(map(visible, made["warnings"]))} if made.get("warnings") else {}
        return made | texts | warnings

    @abstractmethod
    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the task for its validated options."""


def explain(error: OSError) -> str:
    """Return what is wrong with a file of this machine and what to do; empty if the error is not about a file."""
    remedies = {
        ENOSPC: "Free some space there.",
        EROFS: "Its file system is read-only: use a directory of another one.",
        **dict.fromkeys((EACCES, EPERM), "Give the user who runs Ansible access to it, or use another directory."),
    }
    if error.filename is None and error.errno != ENOSPC:
        return ""
    found = f"{error.filename or 'A file'}: {error.strerror} on the machine that runs Ansible."
    return f"{found} {remedies.get(error.errno or 0, 'Remove it, or use another path.')}"


def refusal(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failed result that counts its errors, and holds their text for the end of the run.

    Ansible prints the message of a failed task twice, once with the rest of the result.
    """
    findings = [load(Finding, finding) for finding in result["findings"]]
    first = result["msg"].splitlines()[0].rstrip(".")
    rest = {key: value for key, value in result.items() if key not in ("findings", "report")}
    report = result.get("report") or render_findings(findings, width())
    return rest | {
        "msg": f"{first}: {counted(findings)}, each explained at the end of the output.",
        **hold(f"{first}.\n{report}"),
    }


def shown_warnings(findings: Iterable[Finding]) -> list[str]:
    """Return findings as Ansible prints them after [WARNING]: wrapped, with the remedy on a line of its own."""
    return [render_in_order([finding], width() - 2).removeprefix("warning: ") for finding in merge_places(findings)]


def plan_result(
    what: str, failed: bool, findings: Sequence[Finding], facts: Mapping[str, Any], done: str
) -> dict[str, Any]:
    """Return the result of planning ``what``: facts and warnings on success, otherwise only findings and message."""
    shown = [finding.as_dict() for finding in findings]
    if failed:
        text = f"{what} can't be planned; nothing was changed.\n{format_findings(findings)}"
        return {"changed": False, "failed": True, "findings": shown, "msg": text}
    return {
        "changed": False,
        "findings": shown,
        "ansible_facts": dict(facts),
        "warnings": shown_warnings(finding for finding in findings if finding.severity == "warning"),
        "msg": done,
        # With -v, Ansible would print the whole plan as data (CallbackBase._run_is_verbose). It is shown as text.
        "_ansible_verbose_override": True,
    }
