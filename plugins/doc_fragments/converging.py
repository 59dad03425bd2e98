# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that bring a host to a desired state have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of whatever changes only what differs."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Returns what would change without changing it.
    support: full
  idempotent:
    description: A second run changes nothing.
    support: full
"""
