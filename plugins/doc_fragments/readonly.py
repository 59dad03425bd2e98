# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules and actions that only look, compute or judge have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of whatever changes nothing."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Changes nothing in either mode and returns the same.
    support: full
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
  idempotent:
    description: Changes nothing.
    support: full
"""
