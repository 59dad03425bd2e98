# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell which variables keep NCCL from writing what proves its transport. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping

VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "NCCL_HOSTID")
"""The variables that ``blinds`` knows; start_rank.py writes those that are set to a file that the sidecar reads."""

# Levels that include INFO, in any case of letters (ncclDebugLogLevel; NCCL compares with strcasecmp).
_LOUD = frozenset({"INFO", "ABORT", "TRACE"})
# INIT writes the beginning and the end of each communicator's setup, NET the devices, GIDs and MTUs.
_NEEDED = frozenset({"INIT", "NET"})


def blinds(name: str, value: str) -> str:
    """Return how a variable hides NCCL's transport, empty if it does not.

    ``silent``: the log level is too low. ``masked``: the lines belong to subsystems that are turned off.
    ``conf_file``: NCCL takes variables from a place that nobody checked. ``host_id``: NCCL does not see which ranks
    share a host. Source: debug.cc, param.cc and utils.cc of NCCL 2.17.1 to 2.32.3.
    """
    # NCCL before 2.30 takes blanks as part of a name, and an unknown level as none.
    if name == "NCCL_DEBUG":
        return "" if value.upper() in _LOUD else "silent"
    if name == "NCCL_DEBUG_SUBSYS":
        return "masked" if _NEEDED - _shown(value) else ""
    if name in ("NCCL_CONF_FILE", "NCCL_ENV_PLUGIN"):
        return "conf_file" if value else ""
    # Also if it is empty: then all hosts have the same identity.
    return "host_id" if name == "NCCL_HOSTID" else ""


def _shown(mask: str) -> frozenset[str]:
    """Return those of the needed subsystems whose lines every release of NCCL writes with this mask."""
    if mask.startswith("^"):
        # NCCL 2.30 and later take a name with blanks, earlier releases do not.
        hidden = {name.strip().upper() for name in mask[1:].split(",")}
        return frozenset() if "ALL" in hidden else _NEEDED - hidden
    names = {name.upper() for name in mask.split(",")}
    return _NEEDED if "ALL" in names else _NEEDED & names


def blinder(written: bytes) -> str:
    """Return the first variable that hides the transport, as ``NAME=value``; ``written`` is start_rank.py's file."""
    try:
        given = json.loads(written)
    except ValueError:
        return ""
    if not isinstance(given, Mapping):
        return ""
    values = {name: str(given[name]) for name in VARIABLES if name in given}
    return next((f"{name}={value}" for name, value in values.items() if blinds(name, value)), "")
