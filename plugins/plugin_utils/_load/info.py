# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read version and resolved arguments from a server, without its secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .client import UNREADABLE, Target, fetch

SECRET = ("key", "token", "password", "secret")
SECRET_FLAG = re.compile(r"(--[\w-]*(?:key|token|password|secret)[ =])\S+")
"""A secret among the words of a command line, for example in SGLang's launch_command (0.5.20 and newer)."""
PATHS = ("/server_info", "/get_server_info")
"""The second name is that of releases up to 0.5.11."""

NO_JSON: tuple[type[Exception], ...] = (ValueError,)


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return cleaned(value)
    if isinstance(value, list):
        return [_shown(v) for v in value]
    return SECRET_FLAG.sub(r"\1…", value) if isinstance(value, str) else value


def cleaned(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set in a server's answer, without possible secrets at any depth."""
    kept = {}
    for key, value in info.items():
        counts = isinstance(value, (int, float))
        if value is None or key == "internal_states" or (any(s in key.lower() for s in SECRET) and not counts):
            continue
        kept[key] = _shown(value)
    return kept


async def server_info(target: Target) -> dict[str, Any]:
    """Return the server's settings, or an empty result if it is not SGLang or can't be reached."""
    for path in PATHS:
        try:
            answer = json.loads(await fetch(target, path))
        except UNREADABLE + NO_JSON:
            continue
        if isinstance(answer, dict):
            return cleaned(answer)
    return {}


def graphs_expected(info: Mapping[str, Any]) -> bool:
    """Return whether this server should decode in CUDA graphs: false if they were disabled or there is no GPU."""
    off = bool(info.get("disable_cuda_graph") or info.get("disable_decode_cuda_graph"))
    disabled = info.get("cuda_graph_backend_decode") == "disabled"
    return not (off or disabled or info.get("device") == "cpu")


def draft_tokens(info: Mapping[str, Any]) -> int | None:
    """Return how many tokens the server verifies per step, including the target's own; None without drafts."""
    return info.get("speculative_num_draft_tokens")


def longest_step(info: Mapping[str, Any]) -> int | None:
    """Return the maximum of tokens that one verify step can accept: one more than the depth of the tree of drafts."""
    most, depth = draft_tokens(info), info.get("speculative_num_steps")
    tree = (info.get("speculative_eagle_topk") or 1) > 1
    return min(most, depth + 1) if most and depth and tree else most


async def served_model(target: Target) -> str:
    """Return the name under which the server serves its model. Raises OSError or ValueError if it reports none."""
    cards = json.loads(await fetch(target, "/v1/models")).get("data") or []
    if not cards:
        raise ValueError(f"{target.url}/v1/models lists no model")
    return str(cards[0]["id"])
