# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.speed import compare_speed


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {"compare_speed": compare_speed}
