# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that wait in slices have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """The option by which one slice of a wait continues the one before it."""

    DOCUMENTATION = r"""
options:
  progress:
    description: State of the wait. The action passes it from one slice of the wait to the next; do not set it.
    type: dict
    default: {}
"""
