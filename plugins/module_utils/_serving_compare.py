# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running server says of itself against what it was asked for. Private to the collection.

SGLang rewrites about a third of what it is told without refusing it; ``/server_info`` shows what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Names up to 0.5.13 -> names since.
_RENAMED = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
}


def asked(argv: Sequence[str]) -> dict[str, str | bool]:
    """Return the flags of a command line under SGLang's own names; a flag without a value is True."""
    found: dict[str, str | bool] = {}
    words = [word for place, word in enumerate(argv) if place > 2]  # python3 -m sglang.launch_server
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, given, value = word[2:].partition("=")
        following = words[place + 1] if place + 1 < len(words) else "--"
        key = name.replace("-", "_")
        found[_RENAMED.get(key, key)] = value if given else True if following.startswith("--") else following
    return found


def _same(wanted: str | bool, runs: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(runs, bool):
        return str(wanted).lower() == str(runs).lower()
    if isinstance(runs, (int, float)):
        try:
            return float(wanted) == float(runs)
        except ValueError:
            return False
    return str(wanted) == str(runs)


def differences(argv: Sequence[str], info: Mapping[str, Any], version: str) -> list[str]:
    """Return a line for every setting that the server runs with another value than it was given.

    Flags that the server does not report are left out: a renamed destination is no difference that anybody can judge.
    """
    running = {_RENAMED.get(key, key): value for key, value in info.items()}
    found = [
        f"{key}: asked for {wanted}, runs {running[key]}"
        for key, wanted in sorted(asked(argv).items())
        if key in running and not _same(wanted, running[key])
    ]
    if info.get("version") and str(info["version"]) != version:
        found.insert(0, f"version: the profile is for {version}, the image runs {info['version']}")
    return found
