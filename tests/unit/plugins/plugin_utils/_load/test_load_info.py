# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils._load.info import cleaned


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
