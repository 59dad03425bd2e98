# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point of lab/labctl."""

import sys

from .cli import main

sys.exit(main())
