# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download K3s's binary and images from its release page and verify their checksums."""

import hashlib
import os
import tempfile
import urllib.request
from pathlib import Path

PAGE = "https://github.com/k3s-io/k3s/releases/download"


def fetch(release: str, arch: str, cache: Path) -> Path:
    """Return the path of the binary of ``release``, with its images beside it; download files that the cache lacks.

    ``LAB_K3S_URL`` names a mirror of the release page. Raises OSError if the page can't be reached and ValueError if a
    file does not match its checksum; then the cache is unchanged.
    """
    final = cache / f"k3s-{release}"
    binary = "k3s" if arch == "amd64" else f"k3s-{arch}"
    if final.is_dir():
        return final / binary
    cache.mkdir(parents=True, exist_ok=True)
    page = f"{os.environ.get('LAB_K3S_URL', PAGE)}/{release.replace('+', '%2B')}"
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as directory:
        made = Path(directory, release)
        made.mkdir()
        _save(f"{page}/sha256sum-{arch}.txt", made / "sums")
        sums = {name: digest for digest, name in map(str.split, (made / "sums").read_text().splitlines())}
        for name in (binary, f"k3s-airgap-images-{arch}.tar.zst"):
            if _save(f"{page}/{name}", made / name) != sums.get(name):
                raise ValueError(f"{page}/{name} is not what sha256sum-{arch}.txt says: refused")
        (made / binary).chmod(0o755)
        made.rename(final)
    return final / binary


def _save(url: str, path: Path) -> str:
    """Download a URL to a file; return the SHA-256 of the file."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=30) as answer, path.open("wb") as stream:
        while block := answer.read(1 << 20):
            digest.update(block)
            stream.write(block)
    return digest.hexdigest()
