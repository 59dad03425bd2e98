# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the values of secret variables, which no file for others may contain. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleError

from .._variables.known import load_known

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
