# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a resolved profile to the input of the serving planner. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._sglang.profile import ResolvedProfile
from .model import Load, Patch, Profile

METRICS = "--enable-metrics"
DRAFT_REVISION = "speculative_draft_model_revision"
DEFAULT_REVISION = "main"
# SGLang's own 300 s are too short for the first forward pass of a large MoE model, which loads and tunes kernels; four
# Sparks run with 3600 s. --dist-timeout is how long ranks wait for one that is slower, or dead: 900 s there.
TIMEOUTS = {"--watchdog-timeout": "3600", "--dist-timeout": "900"}


def staged_path(repository: str, models_dir: str) -> str:
    """Return the directory of a staged model: ``org/name`` becomes ``org--name``."""
    return f"{models_dir}/{repository.replace('/', '--')}"


def _models(resolved: ResolvedProfile) -> list[str]:
    """Return what the server loads: the model, and the draft model if it has one."""
    listed = [str(resolved.model["path"]), str(resolved.model.get("draft") or "")]
    return [name for name in dict.fromkeys(listed) if name]


def repositories(resolved: ResolvedProfile) -> list[str]:
    """Return the repositories that must be on every node."""
    return [name for name in _models(resolved) if not name.startswith("/")]


def revisions(resolved: ResolvedProfile) -> dict[str, str]:
    """Return the branch, tag or commit of every repository that must be on the nodes."""
    given = {
        str(resolved.model.get("draft") or ""): resolved.server_args.get(DRAFT_REVISION),
        str(resolved.model["path"]): resolved.model.get("revision"),
    }
    return {name: str(given.get(name) or DEFAULT_REVISION) for name in repositories(resolved)}


def _load(memory: Mapping[str, Any]) -> Load | None:
    """Return what the start of a rank compares with the memory of its node, or None on a GPU with memory of its own."""
    if memory["load_gib"] is None:
        return None
    return Load(memory["load_gib"], round(memory["fraction"], 4), memory["available_gib"], memory["most_gib"])


def to_serving(resolved: ResolvedProfile, models_dir: str, metrics: bool) -> Profile:
    """Return the planner's view.

    With ``models_dir`` the server reads models from there instead of downloading them; ``metrics`` makes it provide
    /metrics, which benchmarks and monitoring read. Time-outs that the profile does not set are those of large models.
    """
    path, argv = str(resolved.model["path"]), list(resolved.argv)
    if metrics and METRICS not in argv:
        argv.append(METRICS)
    given = {word.partition("=")[0] for word in argv}
    argv += [word for flag, seconds in TIMEOUTS.items() if flag not in given for word in (flag, seconds)]
    if models_dir:
        for name in repositories(resolved):
            staged = staged_path(name, models_dir)
            argv, path = [staged if word == name else word for word in argv], staged if name == path else path
    return Profile(
        name=resolved.name,
        preset=resolved.preset,
        sglang_version=resolved.sglang_version,
        image=resolved.image,
        model_path=path,
        paths=tuple(name for name in _models(resolved) if name.startswith("/")),
        revision=str(resolved.model.get("revision") or ""),
        nodes=resolved.topology["nodes"],
        tp=resolved.topology["tp"],
        pp=resolved.topology["pp"],
        ep=resolved.topology["ep"],
        argv=tuple(argv),
        env=resolved.env,
        patches=tuple(Patch(**patch) for patch in resolved.patches),
        models=tuple(repositories(resolved)),
        revisions=revisions(resolved),
        memory=tuple(resolved.memory["lines"]),
        load=_load(resolved.memory),
        nccl=resolved.nccl,
    )
