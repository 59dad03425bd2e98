# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out why a host could not be read, from the errors of ssh, sudo and Ansible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .host import Fault

# The first pattern that the error contains decides. ssh prints both lines about host keys when a key has changed.
_CAUSES = {
    "preflight.login.key_changed": "remote host identification has changed|host key .* has changed",
    "preflight.login.key_unknown": "host key verification failed|host key is known for",
    "preflight.login.name": "could not resolve hostname",
    "preflight.login.password": "sshpass|incorrect ssh password|invalid/incorrect (?:username/)?password",
    "preflight.login.sudo_password": "missing sudo password|sudo: a password is required",
    "preflight.login.sudo_wrong": r"incorrect sudo password|sudo: \d+ incorrect password|sorry, try again",
    "preflight.login.no_sudo": "not in the sudoers file|is not allowed to (?:execute|run sudo)|sudo: .*not found",
    "preflight.host.no_python": r"interpreter .* was not found|python[\d.]*: (?:not found|no such file)",
    "preflight.host.full": "no space left on device|disk quota exceeded",
    "preflight.host.read_only": "read-only file system",
    "preflight.host.no_directory": "failed to create temporary directory",
    "preflight.login.refused": r"permission denied \(|too many authentication failures",
    # Not "timed out" or "refused": an error of the module itself may contain these words.
    "preflight.login.no_answer": "failed to connect to the host via ssh|could not be sent to remote host",
}

_BEFORE = (
    "Task failed: |Failed to connect to the host via ssh: |"
    r"Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: "
)

UNKNOWN = "preflight.host.unread"


def error_of(result: Mapping[str, Any]) -> str:
    """Return all that a failed task says of its error."""
    return "\n".join(str(result.get(part) or "") for part in ("msg", "module_stderr", "module_stdout")).strip()


def explain(unread: Mapping[str, str]) -> tuple[str, Fault]:
    """Return the rule that explains the error of a host that could not be read, and the values for its sentences."""
    error = unread.get("error", "")
    words = {"address": unread.get("address", ""), "user": unread.get("user") or "USER"}
    for rule, pattern in _CAUSES.items():
        if re.search(pattern, error, re.IGNORECASE):
            return rule, {"value": _line(error, pattern), **words}
    return UNKNOWN, {"value": _line(error, r"\S") or None, **words}


def _line(error: str, pattern: str) -> str:
    """Return the line of the error that contains the pattern, without Ansible's words before it."""
    line = next((line for line in error.splitlines() if re.search(pattern, line, re.IGNORECASE)), "")
    return re.sub(f"^(?:{_BEFORE})+", "", line).strip("@ \t")[:200]
