# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look an image up in the profiles that list it. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .profile_checks import release_in
from .profile_files import ProfileError, find_profiles, read_yaml

DOCKER_HUB = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")


@dataclass(frozen=True)
class Image:
    """An image that a profile lists: its release of SGLang, its changes, and its size in GB (None: not known)."""

    reference: str
    sglang: str
    profile: str
    carries: tuple[str, ...] = ()
    gb: float | None = None

    @property
    def digest(self) -> str:
        """Return the digest in the reference, or an empty text."""
        return self.reference.partition("@")[2]


def bare(reference: str) -> str:
    """Return name and tag of an image without its digest and without the registry that Docker assumes."""
    name = reference.partition("@")[0].removeprefix("docker://")
    return next((name.removeprefix(host) for host in DOCKER_HUB if name.startswith(host)), name)


def known_images(search_path: Iterable[Path | str] = ()) -> tuple[Image, ...]:
    """Return the images of all profiles; a profile that can't be read is left out, because its own use reports it."""
    return _known(tuple(str(entry) for entry in search_path))


@lru_cache(maxsize=4)
def _known(search_path: tuple[str, ...]) -> tuple[Image, ...]:
    found = []
    for name, path in find_profiles(search_path).items():
        try:
            profile = read_yaml(path)
        except ProfileError:
            continue
        for entry in _entries(profile):
            carries = tuple(str(each) for each in entry.get("carries") or ())
            found.append(Image(str(entry["image"]), str(entry["sglang"]), name, carries, entry.get("gb")))
    return tuple(found)


def _entries(profile: Any) -> list[Mapping[str, Any]]:
    listed = profile.get("images") if isinstance(profile, Mapping) else None
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(entry, Mapping) and {"sglang", "image"} <= set(entry)]


def look_up(images: Sequence[Image], reference: str) -> Image | None:
    """Return what is known of an image by its digest, or if it has none, by its name and tag."""
    digest = reference.partition("@")[2]
    if digest:
        return next((image for image in images if image.digest == digest), None)
    named = [image for image in images if bare(image.reference) == bare(reference) and ":" in bare(reference)]
    return next((image for image in named if image.digest), next(iter(named), None))


def release_of(images: Sequence[Image], reference: str) -> str:
    """Return the release of SGLang in an image by the profiles, or by its tag; an empty text if neither says it."""
    found = look_up(images, reference)
    return found.sglang if found else release_in(reference)


def newest(images: Sequence[Image]) -> Image:
    """Return the image of the newest release that has one, with a digest if there is one; raise ValueError without."""
    return max(images, key=lambda image: (Version.parse(image.sglang), bool(image.digest)))
