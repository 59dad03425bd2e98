# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Join tokens in K3s's form: ``K10<hash of the cluster's CA>::<user>:<password>``, or the password alone."""

import re
import secrets
from dataclasses import dataclass

from .pki import fingerprint, write_private
from .settings import Settings, StandInError

_FULL = re.compile(r"^K10([0-9a-f]{64})::([^:]+):(.+)$")


@dataclass(frozen=True)
class Token:
    """A join token; ``ca_hash`` and ``user`` are empty if only the password was given."""

    password: str
    user: str = ""
    ca_hash: str = ""


def parse(text: str) -> Token:
    """Read a token; raise StandInError if it looks like a full token and is invalid."""
    match = _FULL.match(text)
    if match:
        return Token(match[3], match[2], match[1])
    if text.startswith("K10"):
        raise StandInError("failed to validate token: it is neither K10<ca-hash>::<user>:<password> nor a password")
    return Token(text)


def password(settings: Settings) -> str:
    """Return the password of servers: the configured one, otherwise the one of the last start; "" if there is none."""
    path = settings.server / "token"
    known = path.read_text().strip() if path.exists() else ""
    return parse(settings.secret("token") or known).password


def establish(settings: Settings, ca: bytes, *, used: bool) -> tuple[str, str]:
    """Return the server and agent passwords and write the three token files.

    Raise if the datastore was ``used`` with another token: K3s stores data in it that only this token decrypts.
    """
    path = settings.server / "token"
    known = parse(path.read_text().strip()).password if path.exists() else ""
    server = password(settings) or secrets.token_hex(16)
    if used and known and known != server:
        raise StandInError("bootstrap data already found and encrypted with different token")
    agent_given = settings.secret("agent-token")
    agent = parse(agent_given).password if agent_given else server
    prefix = f"K10{fingerprint(ca)}::"
    write_private(path, f"{prefix}server:{server}\n")
    write_private(settings.server / "agent-token", f"{prefix}node:{agent}\n")
    node_token = settings.server / "node-token"
    node_token.unlink(missing_ok=True)
    node_token.symlink_to(path)
    return server, agent
