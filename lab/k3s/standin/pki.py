# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create keys and certificates with the host's openssl."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .settings import StandInError

_DAYS = "3650"
_CA = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign, digitalSignature\n"
_LEAF = (
    "basicConstraints = critical, CA:FALSE\nkeyUsage = critical, digitalSignature, keyEncipherment\n"
    "extendedKeyUsage = clientAuth, serverAuth\n"
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as paths without their suffix."""

    stem: Path

    @property
    def cert(self) -> Path:
        """The certificate."""
        return self.stem.with_name(self.stem.name + ".crt")

    @property
    def key(self) -> Path:
        """The private key."""
        return self.stem.with_name(self.stem.name + ".key")


def _openssl(*arguments: str | Path, extensions: str = "") -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as config:
        config.write(f"[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n[dn]\n[ext]\n{extensions}")
        config.flush()
        more = ["-config", config.name] if arguments[0] == "req" else []
        done = subprocess.run(["openssl", *arguments, *more], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StandInError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def authority(stem: Path, name: str) -> Pair:
    """Create a certificate authority unless it exists."""
    pair = Pair(stem)
    if not pair.cert.exists():
        stem.parent.mkdir(parents=True, exist_ok=True)
        _new(pair, f"/CN={name}", _CA + "subjectKeyIdentifier = hash\n")
    return pair


def service_key(path: Path) -> Path:
    """Create the key that signs service account tokens unless it exists."""
    if not path.exists():
        with _umask():
            _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", path)
    return path


def certificate(stem: Path, ca: Pair, subject: str, names: Iterable[str] = ()) -> Pair:
    """Create a certificate signed by ``ca``, or keep one that would be the same, as K3s does when it starts again."""
    pair = Pair(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    leaf = _leaf(names)
    recipe = hashlib.sha256(ca.cert.read_bytes() + f"{subject}\n{leaf}".encode()).hexdigest()
    if not _made_of(pair, recipe):
        _new(pair, subject, f"{leaf}nsComment = {recipe}\n", "-CA", ca.cert, "-CAkey", ca.key)
    return pair


def _made_of(pair: Pair, recipe: str) -> bool:
    """Return whether a certificate is of this recipe and fits its key, which a start that was killed has replaced."""
    if not (pair.cert.exists() and pair.key.exists()):
        return False
    try:
        told = _openssl("x509", "-in", pair.cert, "-noout", "-text", "-pubkey")
        return recipe in told and _openssl("pkey", "-in", pair.key, "-pubout") in told
    except StandInError:  # written in part
        return False


def request(stem: Path) -> str:
    """Create a key unless it exists, and a request for it; return the request as text."""
    pair = Pair(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    if not pair.key.exists():
        with _umask():
            _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", pair.key)
    with tempfile.NamedTemporaryFile("r") as out:
        _openssl("req", "-new", "-key", pair.key, "-subj", "/CN=request", "-out", out.name)
        return out.read()


def sign(text: str, ca: Pair, subject: str, names: Iterable[str] = ()) -> str:
    """Sign a request; ignore its subject and extensions."""
    with tempfile.NamedTemporaryFile("w", suffix=".csr") as csr, tempfile.NamedTemporaryFile("r") as out:
        csr.write(text)
        csr.flush()
        _openssl("req", "-x509", "-in", csr.name, "-CA", ca.cert, "-CAkey", ca.key, "-subj", subject, "-days", _DAYS,
                 "-out", out.name, extensions=_leaf(names))  # fmt: skip
        return out.read()


def _leaf(names: Iterable[str]) -> str:
    wanted = list(dict.fromkeys(names))
    alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in wanted)
    return _LEAF + "authorityKeyIdentifier = keyid\n" + (f"subjectAltName = {alternatives}\n" if wanted else "")


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _new(pair: Pair, subject: str, extensions: str, *signer: str | Path) -> None:
    with _umask():
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS,
                 "-subj", subject, "-keyout", pair.key, "-out", pair.cert, *signer, extensions=extensions)  # fmt: skip
    pair.cert.chmod(0o644)


class _umask:
    """Let other users read nothing that is written in this context."""

    def __enter__(self) -> None:
        self._before = os.umask(0o077)

    def __exit__(self, *_: object) -> None:
        os.umask(self._before)


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
        stream.write(text)
    part.chmod(mode)
    part.rename(path)


def fingerprint(ca: bytes) -> str:
    """Return the hash of the cluster's CA that a token contains."""
    return hashlib.sha256(ca).hexdigest()
