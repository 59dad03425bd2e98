# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the MXFP4 experts of DeepSeek-V4's draft layer with marlin if it is the runner of the draft."""

from __future__ import annotations

from gb10_patch import Edit, run

OLD = """                return Mxfp4FlashinferTrtllmMoEMethod(Fp8MoEMethod(self), prefix=prefix)
"""
NEW = f"""                from sglang.srt.layers.moe import get_moe_runner_backend
                from sglang.srt.layers.quantization.mxfp4_marlin_moe import Mxfp4MarlinMoEMethod

                if get_moe_runner_backend().is_marlin():
                    return Mxfp4MarlinMoEMethod(Fp8MoEMethod(self), prefix=prefix)
{OLD}"""

run("dsv4-draft-marlin", [Edit("sglang/srt/layers/quantization/modelopt_quant.py", OLD, NEW)])
