# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the NCCL version that a release of SGLang contains."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Catalogue

# Requires-Dist nvidia-nccl-cu12 or -cu13 of torch's Linux wheels on PyPI, for the releases of torch that SGLang pins.
_OF_TORCH = {"2.9.1": "2.27.5", "2.11.0": "2.28.9", "2.13.0": "2.29.7", "2.14.1": "2.30.7"}
_CARRIES = "nccl>="


def oldest_nccl(catalogue: Catalogue, carries: Sequence[str]) -> str:
    """Return the NCCL that the image carries by its entry in the profile, else the one that the release's torch pins.

    A torch that is not in the table has at least the NCCL of the release before it.
    """
    torch = Version.find(catalogue.requires.get("torch"))
    known = [nccl for release, nccl in _OF_TORCH.items() if torch and torch.within(release, None)]
    carried = [word.removeprefix(_CARRIES) for word in carries if word.startswith(_CARRIES)]
    return (carried or known or ["2.0"])[-1]
