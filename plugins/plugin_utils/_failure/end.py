# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""End a task with one screen, and write what does not fit on it to a file. Private to the collection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import write_private
from ansible_collections.gb10.cluster.plugins.module_utils._support.redact import redact

from .._controller.last_word import hold, width
from .._screen.screen import Screen, render, render_text
from .._variables.values import load_known

_CONNECTION = ("password", "become_password", "become_pass", "ssh_pass", "ssh_password", "sudo_pass")
# Variables that no role declares: those of a vault, and those that are named like a secret.
_OWN_SECRET = re.compile(r"vault|(?:.*_)?(?:password|passwd|passphrase|psk|token|api_key)$", re.I)
# Options with the configuration of another program, and the keys in it that have secrets. The URL of a webhook is one.
_CONFIGURATIONS = ("k3s_registries", "monitoring_alertmanager")
_SECRET_KEY = re.compile(r"(?:password|token|secret|key|credentials|auth|url)$", re.I)


def secret_values(hostvars: Any) -> tuple[set[str], dict[str, str]]:
    """Return the values of all secret variables, and why others could not be read."""
    known = load_known()
    specs = {**known.shared, **{name: spec for role in known.roles.values() for name, spec in role.items()}}
    names = [name for name, spec in specs.items() if spec.get("no_log")] + [f"ansible_{name}" for name in _CONNECTION]
    found: set[str] = set()
    unknown: dict[str, str] = {}
    for host in hostvars:
        values = hostvars[host]
        own = [name for name in values if name not in specs and _OWN_SECRET.match(name)]
        for name in [*names, *own, *_CONFIGURATIONS]:
            try:
                found |= set((_keyed if name in _CONFIGURATIONS else _strings)(values.get(name)))
            except AnsibleError as error:
                unknown[name] = type(error).__name__
    return found, unknown


def _keyed(value: Any) -> Iterator[str]:
    """Yield the strings of a configuration whose keys are those of secrets."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(each) if isinstance(each, str) and _SECRET_KEY.search(str(key)) else _keyed(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _keyed(each)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)
    elif value is not None:
        yield str(value)


Template = Callable[[Any], Any]


def failed(
    screen: Screen,
    name: str,
    details: Mapping[str, Any],
    task_vars: Mapping[str, Any],
    template: Template,
    write: bool = True,
) -> dict[str, Any]:
    """Return a failed result whose message is the title, and hold the screen for the end of the run.

    ``details`` go to ``failed-<name>.txt`` in the directory of results, readable by its owner only and without secrets.
    """
    secrets = secret_values(task_vars["hostvars"])[0]
    if write and not screen.details:
        kept, why = _keep(name, details, secrets, task_vars, template)
        screen = replace(screen, details=kept, notes=[*screen.notes, ("Details", why)] if why else screen.notes)
    text = redact(render(screen, width()), secrets)
    return {"failed": True, "msg": screen.title, **hold(text)}


def failed_text(
    name: str, details: Mapping[str, Any], task_vars: Mapping[str, Any], template: Template, write: bool = True
) -> dict[str, Any]:
    """Return a failed result with the first line of a message of several lines, and hold the whole message."""
    secrets = secret_values(task_vars["hostvars"])[0]
    kept, why = _keep(name, details, secrets, task_vars, template) if write else ("", "")
    text = render_text(f"{details['msg']}\nDetails: {why}" if why else details["msg"], width(), details=kept)
    return {"failed": True, "msg": redact(details["msg"].splitlines()[0], secrets), **hold(redact(text, secrets))}


def _keep(
    name: str, details: Mapping[str, Any], secrets: Collection[str], task_vars: Mapping[str, Any], template: Template
) -> tuple[str, str]:
    """Write the details to a file; return its name, or why it could not be written."""
    directory = Path(str(template(task_vars.get("gb10_results_dir", "results")))).expanduser()
    path = directory / f"failed-{re.sub(r'[^A-Za-z0-9.-]+', '-', name).strip('-')}.txt"
    try:
        return write_private(path, f"{redact(_text(details), secrets)}\n".encode()), ""
    except OSError as error:
        return "", f"not kept, {path}: {error.strerror}"


def _text(details: Mapping[str, Any]) -> str:
    """Return the message as it is, then everything else as JSON."""
    rest = {key: value for key, value in details.items() if key not in ("msg", "invocation", "exception")}
    return f"{details.get('msg', '')}\n\n{json.dumps(rest, indent=1, sort_keys=True, default=str)}"
