# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED SGLang without model, GPU or RDMA. Only for the lab; see lab/sglang/README.md."""

import os

__version__ = f"{os.environ.get('SGLANG_STANDIN_VERSION', '0.5.12.post1')} (SIMULATED)"
