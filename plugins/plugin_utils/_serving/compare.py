# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the settings that a running server reports with those it was given. Private to the collection.

SGLang changes about a third of its settings without refusing them; ``/server_info`` shows the values that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._sglang.argv import parse_flags
from .._sglang.catalogue import History
from .._sglang.check import clean_argv

# Names of the parser in releases up to 0.5.13 -> names of the settings; later parsers use the latter.
_RENAMED = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "expert_parallel_size": "ep_size",
    "data_parallel_size": "dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}


def asked(argv: Sequence[str], version: str, history: History) -> dict[str, Any]:
    """Return the settings of a command line under SGLang's own names, as the release's parser stores them."""
    catalogue = history.nearest(Version.parse(version))[0]
    stored = parse_flags(catalogue, history, clean_argv(argv)).stored
    return {_RENAMED.get(name, name): value for name, value in stored.items()}


def unforeseen(resolved: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """Return a line for every setting that the server runs with another value than its image resolved before the start.

    ``resolved`` are the head's values as the image's check returns them.
    """
    return [
        f"{key}: the check of the image expected {value}, runs {info[key]}"
        for key, value in sorted(resolved.items())
        if key in info and value != info[key]
    ]


def _same_version(wanted: str, runs: str) -> bool:
    try:
        return Version.parse(wanted).means(Version.parse(runs))
    except ValueError:
        return wanted == runs


def differences(argv: Sequence[str], info: Mapping[str, Any], version: str, history: History) -> list[str]:
    """Return a line for every setting that the server runs with another value than it was given.

    Flags that the server does not report are left out, since their values can't be compared. Raises ValueError when
    ``version`` is not a version.
    """
    running = {_RENAMED.get(key, key): value for key, value in info.items()}
    found = [
        f"{key}: asked for {wanted}, runs {running[key]}"
        for key, wanted in sorted(asked(argv, version, history).items())
        if key in running and wanted != running[key]
    ]
    if info.get("version") and not _same_version(version, str(info["version"])):
        found.insert(0, f"version: the profile is for {version}, the image runs {info['version']}")
    return found
