# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED SGLang without model, GPU or RDMA. Only for the lab; see lab/sglang/README.md."""

import os

__version__ = f"{os.environ.get('SGLANG_STANDIN_VERSION', '0.5.12.post1')} (SIMULATED)"
