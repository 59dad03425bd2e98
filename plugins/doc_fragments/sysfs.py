# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that read sysfs have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """The option that names the place of sysfs."""

    DOCUMENTATION = r"""
options:
  sysfs_root:
    description: Where sysfs is mounted.
    type: path
    default: /sys
"""
