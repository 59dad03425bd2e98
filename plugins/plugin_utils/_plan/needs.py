# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell what the planned group needs of its nodes: space for image and weights, and swap. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._preflight.host import Needs
from .._serving.profile import repositories
from .._sglang.profile import ResolvedProfile
from .serving import resolve_options

IMAGE_GB = 23.0
"""Space of an image of SGLang on a node where the profile does not know more: what owners of Sparks saw."""

WEIGHTS_GIB = 100.0
"""Space of weights whose size nobody stated."""


def find_needs(options: Mapping[str, Any]) -> Needs | None:
    """Return what the group of these options of role serving_plan needs, or None if its profile cannot be resolved.

    With a fallback preset, each node needs what either preset needs.
    """
    presets = [options["preset"], *filter(None, [options["fallback_preset"]])]
    found = [resolve_options({**options, "preset": preset})[0] for preset in presets]
    known = [resolved for resolved in found if resolved is not None]
    if len(known) < len(found):
        return None
    return Needs(
        nodes=tuple(options["nodes"] or options["candidates"][: int(known[0].topology["nodes"])]),
        profile=f"{known[0].name}/{known[0].preset}",
        images={resolved.image: max(resolved.image_gb or 0.0, IMAGE_GB) * 1e9 / 2**30 for resolved in known},
        models={_directories(resolved): _weights(resolved) for resolved in known},
        models_dir=options["models_dir"],
        swap_gib=max(resolved.swap_gib for resolved in known),
    )


def _directories(resolved: ResolvedProfile) -> tuple[str, ...]:
    return tuple(repo.replace("/", "--") for repo in repositories(resolved))


def _weights(resolved: ResolvedProfile) -> float:
    """Return the GiB of the weights that have to be on a node; 0 where the owner has put them somewhere else."""
    size = resolved.memory.get("download_gb")
    if not repositories(resolved):
        return 0.0
    return WEIGHTS_GIB if size is None else float(size) * 1e9 / 2**30
