# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated cluster: hosts, switches and the commands that start and remove them. Standard library only."""
