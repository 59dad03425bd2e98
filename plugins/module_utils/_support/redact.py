# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove secrets from text before it leaves a machine.

The sources of a bundle are an allow-list, so most secrets are never read. This removes those that end up in logs and
configuration: by their shape, by the name before them, and by their known value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable

REMOVED = "<removed>"
SHORTEST = 4
"""A known value that is shorter than this would remove ordinary words."""

_NAMES = r"passw(?:or)?d|passphrase|psk|secret|token|api[-_]?key|key-data|private(?:[-_]?key)?|credentials?|cookie"
_NAME = rf"[\w.-]*(?:{_NAMES})|(?:\w+_)?auth|(?:[\w.-]*[-_.])?key"
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
    re.compile(r"(?:^[A-Za-z0-9+/=]{16,}\n)+-----END [A-Z ]*PRIVATE KEY-----", re.M),
    re.compile(r"LS0tLS1[A-Za-z0-9+/]{20,}={0,2}"),
    re.compile(r"\bK10[0-9a-f]{32,}::\S+"),
    re.compile(r"\b(?:hf_|gh[opsu]_|glpat-|sk-)[\w-]{8,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"(?<=Bearer )[^\s\"',]+|(?<=Basic )[A-Za-z0-9+/=]{8,}", re.I),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(rf"(?<=--)(?P<name>[\w-]*(?:{_NAMES}|key))(?P<gap>[\"']?\s*[,=\s]\s*[\"']?)(?!-)[^\s\"',]+", re.I),
)
_LINE = re.compile(rf"(?P<head>(?P<indent>\s*)(?:- )?[\"']?(?:{_NAME})[\"']?\s*:)(?P<value>\s.*|)$", re.I)
_INLINE = re.compile(
    rf"(?<![\w.-])(?P<head>[\"']?(?:{_NAME})[\"']?\s*[:=]\s*)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s,}}\]]+)", re.I
)
# "#new-token: 12" of SGLang's log is a count.
_PLAIN = re.compile(r"[\"']?(?:\d{1,7}(?:\.\d+)?|true|false|null|none|~|<removed>)?[\"']?,?", re.I)


def _shaped(match: re.Match[str]) -> str:
    named = match.groupdict().get("name")
    return f"{named}{match['gap']}{REMOVED}" if named else REMOVED


def _named(match: re.Match[str]) -> str:
    plain = _PLAIN.fullmatch(match["value"].strip()) and not re.search("passw|psk|passphrase", match["head"], re.I)
    return match[0] if plain else f"{match['head']}{'' if match['head'][-1] in ' =' else ' '}{REMOVED}"


def _lines(text: str) -> Iterable[str]:
    """Yield the lines without the values of secret names, and without the lines that continue such a value."""
    below: int | None = None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if below is not None and (indent > below or not line.strip()):
            continue
        below = None
        match = _LINE.match(line)
        if match and match["value"].strip().rstrip("+-") in ("", "|", ">"):
            below = len(match["indent"])
            yield f"{match['head']} {REMOVED}"
        else:
            yield _named(match) if match and "{" not in match["value"] else _INLINE.sub(_named, line)


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return the text without private keys, tokens, passwords, and the ``known`` secrets, plain or in base64."""
    for secret in sorted({s.strip() for s in known if len(s.strip()) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, REMOVED).replace(base64.b64encode(secret.encode()).decode(), REMOVED)
    for shape in _SHAPES:
        text = shape.sub(_shaped, text)
    return "\n".join(_lines(text))
