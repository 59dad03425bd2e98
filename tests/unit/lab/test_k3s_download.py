# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that K3s's binary is downloaded only with the right checksum, from a local web page."""

import functools
import hashlib
import importlib
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab" / "kubernetes"))
k3s_download = importlib.import_module("k3s_download")

RELEASE = "v1.36.4+k3s1"
FILES = {"k3s": b"the binary", "k3s-airgap-images-amd64.tar.zst": b"the images"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a release page on this machine; return its directory."""
    directory = tmp_path / "page" / RELEASE
    directory.mkdir(parents=True)
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items())
    (directory / "sha256sum-amd64.txt").write_text(sums)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "page"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("LAB_K3S_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield directory
        server.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir()
    return made


def test_binary_and_images_are_cached_and_not_downloaded_again(page: Path, cache: Path) -> None:
    binary = k3s_download.fetch(RELEASE, "amd64", cache)
    assert binary.read_bytes() == FILES["k3s"]
    assert binary.stat().st_mode & 0o111
    assert (binary.parent / "k3s-airgap-images-amd64.tar.zst").read_bytes() == FILES["k3s-airgap-images-amd64.tar.zst"]
    (page / "k3s").unlink()
    assert k3s_download.fetch(RELEASE, "amd64", cache) == binary


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_a_wrong_checksum_is_refused_and_nothing_is_kept(page: Path, cache: Path, name: str) -> None:
    (page / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not what"):
        k3s_download.fetch(RELEASE, "amd64", cache)
    assert list(cache.iterdir()) == []


def test_a_page_that_cannot_be_reached_is_an_error_and_nothing_is_kept(page: Path, cache: Path) -> None:
    (page / "sha256sum-amd64.txt").unlink()
    with pytest.raises(OSError, match="404"):
        k3s_download.fetch(RELEASE, "amd64", cache)
    assert list(cache.iterdir()) == []
