# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class and the results of actions that run on the controller, and the last words of a run."""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EACCES, ENOSPC, EPERM, EROFS
from typing import Any, ClassVar

from ansible.constants import config
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    as_dicts,
    merge_places,
)
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import load

from .options import documented_spec, role_options
from .screen import counted, render_findings, render_in_order

# Keep a text for the end of the run, so that it is the last thing on the screen.
#
# Below a failed task, Ansible prints its own error, the result and the recap of all hosts.

WITHOUT_TERMINAL = 100
# Read when the callback contact loads this module: the standard output of Ansible's workers is no terminal.
_TERMINAL = sys.stdout.isatty()
_KEY = "last_word"
# What moves the cursor, colours, erases or reorders text, except the ends of lines and tabs.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Waiting:
    """Whether the callback ``contact`` is loaded, which prints these texts. Ansible forks its workers after that."""

    loaded = False


def width() -> int:
    """Return the columns of the terminal."""
    columns: Any = Display().columns
    # Display has 79 where it finds no terminal, and one less than the columns of a terminal.
    return int(columns) if columns > 79 or _TERMINAL else WITHOUT_TERMINAL


def visible(text: str) -> str:
    """Return a text that shows all that it has: a host, a pod or a model could otherwise rewrite the owner's screen."""
    return _UNSEEN.sub("?", text)


def hold(text: str) -> dict[str, Any]:
    """Return the part of a task's result with a text for the end of the run; display it now if nothing else will.

    Ansible shows the key ``invocation`` only with -vvv (CallbackBase._dump_results). ARA keeps and shows it.
    """
    if not Waiting.loaded:
        tell(text)
    return {"invocation": {_KEY: text.splitlines()}}


def held(result: Mapping[str, Any]) -> str:
    """Return the text that a result holds; empty if there is none."""
    invocation = result.get("invocation")
    lines = invocation.get(_KEY) if isinstance(invocation, Mapping) else None
    return "\n".join(map(str, lines or ()))


def tell(text: str, colour: Callable[[str], str] = str, newline: bool = True) -> None:
    """Display a text; on the error output if the standard output is JSON for a program."""
    callback = config.get_config_value("DEFAULT_STDOUT_CALLBACK").rpartition(".")[2]
    Display().display(colour(visible(text)), stderr=callback in {"json", "jsonl"}, newline=newline)


__all__ = ["ControllerAction", "explain", "plan_result", "refusal", "tell"]


class ControllerAction(ActionBase):
    """An action that needs no connection: it validates its options and returns what ``act`` returns.

    Its options are those in the documentation of the module of the same name and, with ``ROLE``, those of that role,
    named without the role's prefix. A task of the role need not give the latter.
    """

    _requires_connection = False
    ROLE: ClassVar[str] = ""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the task. Raise AnsibleActionFail for invalid options."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        spec = documented_spec(type(self).__module__.rpartition(".")[2])
        of_role: dict[str, Any] = {}
        if self.ROLE:
            own = {name: value for name, value in self._task.args.items() if name not in spec}
            of_role = role_options(self.ROLE, task_vars or {}, self._templar.template, own)
            # An option of the action's own documentation is newer than one of the role with the same name.
            of_role = {
                name: value for name, value in of_role.items() if name not in spec or name not in self._task.args
            }
            spec |= {name: {"type": "raw"} for name in of_role if name not in spec}
        options: dict[str, Any] = self.validate_argument_spec(spec)[1]  # type: ignore[no-untyped-call]
        options |= of_role
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
    report = result.get("report") or shown(findings)
    return rest | {
        "msg": f"{first}: {counted(findings)}, each explained at the end of the output.",
        **hold(f"{first}.\n{report}"),
    }


def shown(findings: Iterable[Finding]) -> str:
    """Return all findings as a run prints them, worst first; an empty string if there are none."""
    return render_findings(findings, width())


def shown_warnings(findings: Iterable[Finding]) -> list[str]:
    """Return findings as Ansible prints them after [WARNING]: wrapped, with the remedy on a line of its own."""
    return [render_in_order([finding], width() - 2).removeprefix("warning: ") for finding in merge_places(findings)]


def plan_result(
    what: str, failed: bool, findings: Sequence[Finding], facts: Mapping[str, Any], done: str
) -> dict[str, Any]:
    """Return the result of planning ``what``: facts and warnings on success, otherwise only findings and message."""
    if failed:
        text = f"{what} can't be planned; nothing was changed."
        return {"changed": False, "failed": True, "findings": as_dicts(findings), "msg": text}
    return {
        "changed": False,
        "findings": as_dicts(findings),
        "ansible_facts": dict(facts),
        "warnings": shown_warnings(finding for finding in findings if finding.severity == "warning"),
        "msg": done,
        # With -v, Ansible would print the whole plan as data (CallbackBase._run_is_verbose). It is shown as text.
        "_ansible_verbose_override": True,
    }
