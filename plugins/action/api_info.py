# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the API as pods_wait runs its module."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.action.pods_wait import ActionModule

__all__ = ["ActionModule"]
