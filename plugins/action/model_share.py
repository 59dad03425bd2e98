# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch a transfer of models in time slices, and show the progress of each node."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.slices import SlicedAction


class ActionModule(SlicedAction):
    """Carry out ``gb10.cluster.model_share``."""
