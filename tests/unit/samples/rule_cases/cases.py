# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""For every rule, a command line to which it applies and a similar one to which it does not."""

from typing import Any, NamedTuple

from . import attention, engine, experts, flags, speculation, states


class Case(NamedTuple):
    """A finding for a release, flags and facts; a similar release, flags and facts do not have it."""

    rule: str
    severity: str
    version: str
    line: str
    known: dict[str, Any]
    other_version: str
    other_line: str
    other_known: dict[str, Any]


CASES = [Case(*each) for group in (attention, engine, experts, flags, speculation, states) for each in group.CASES]
