# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that fetch models from the hub have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Options that name the hub, and options that decide which files a node stores."""

    DOCUMENTATION = r"""
options:
  url:
    description: The hub, or a mirror with the same API.
    type: str
    default: https://huggingface.co
  token:
    description: Token for the hub. It is sent to O(url) only, never to a server to which O(url) redirects.
    type: str
    default: ""
"""

    STORAGE = r"""
options:
  skip:
    description: Patterns of file names to leave out.
    type: list
    elements: str
    default: ["*.pth", "*.gguf", "original/*"]
  reserve_gb:
    description:
      - Gigabytes that must stay free on the disk. V(-1) computes them from the size of the disk, so that the kubelet
        neither deletes images nor evicts pods (6 % of the disk, 12 to 48 GiB, at most 15 %).
    type: float
    default: -1
"""
