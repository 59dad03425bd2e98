# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._load.info import (
    cleaned,
    longest_step,
)


def test_no_secret_of_the_server_is_kept_at_any_depth() -> None:
    info = {
        "api_key": "hunter1",
        "launch_command": "sglang serve --api-key hunter2 --admin-api-key=hunter3 --speculative-num-draft-tokens 4",
        "env": {"HF_TOKEN": "hunter4", "NCCL_DEBUG": "INFO"},
        "hosts": [{"password": "hunter5", "name": "spark1"}],
        "max_total_tokens": 4096,
        "load_format": None,
    }
    assert cleaned(info) == {
        "launch_command": "sglang serve --api-key … --admin-api-key=… --speculative-num-draft-tokens 4",
        "env": {"NCCL_DEBUG": "INFO"},
        "hosts": [{"name": "spark1"}],
        "max_total_tokens": 4096,
    }


@pytest.mark.parametrize(
    ("info", "longest"),
    [
        ({}, None),
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}, 4),
        # a tree verifies more drafts than one step can accept
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 16, "speculative_eagle_topk": 4}, 4),
        # DFLASH drafts a block in one step
        ({"speculative_num_steps": 1, "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1}, 8),
    ],
)
def test_a_step_accepts_at_most_the_depth_of_the_drafts_and_one(info: dict[str, Any], longest: int | None) -> None:
    assert longest_step(info) == longest
