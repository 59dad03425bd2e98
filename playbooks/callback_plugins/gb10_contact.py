# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load the callback contact in every run of these playbooks: Ansible reads this directory beside a playbook."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.callback.contact import CallbackModule

__all__ = ["CallbackModule"]
