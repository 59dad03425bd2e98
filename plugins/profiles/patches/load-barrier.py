# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the ranks wait for a day until the slowest one has loaded its weights; SGLang ends them after 480 s."""

from __future__ import annotations

from gb10_patch import Edit, run

DIRECTORY = "sglang/srt/model_executor"
OLD = "UNBALANCED_MODEL_LOADING_TIMEOUT_S = 480"
NEW = "UNBALANCED_MODEL_LOADING_TIMEOUT_S = 86400"

run(
    "load-barrier",
    [Edit(f"{DIRECTORY}/model_runner_components/load_model_utils.py", OLD, NEW)],
    [Edit(f"{DIRECTORY}/model_runner.py", OLD, NEW)],
)
