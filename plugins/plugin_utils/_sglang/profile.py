# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve a profile and one of its presets to the flags for one SGLang version. Private to the collection.

This runs only on the controller, because it reads the collection's catalogues, rules, facts and patches. Profiles are
plain mappings, which ``_sglang/profile_files.py`` reads from YAML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._paths import PROFILES
from .check import Knowledge, Report, check
from .facts import GPUS, Facts, Setting
from .memory import estimate
from .models import Model, facts_for, find, find_draft, load_models
from .nccl import oldest_nccl
from .patches import Patch, load_patches, select_patches
from .profile_checks import hardware_findings, image_findings, secret_findings, status_findings, with_sampling
from .render import render_argv, topology_argv, translate_env

OVERLAYS = ("server_args", "env", "topology", "sampling", "model", "expected")
PLAIN = ("description", "status", "source", "notes", "sglang_version", "patches", "image", "hardware", "swap_gib")


@dataclass(frozen=True)
class Library:
    """The data with which a profile is checked."""

    knowledge: Knowledge
    models: Mapping[str, Model]
    patches: tuple[Patch, ...]

    @classmethod
    def load(cls, own: Iterable[Path | str] = ()) -> Library:
        """Read the collection's data and that in own directories; raise ValueError that names a malformed file."""
        return _load_library(tuple(Path(directory) for directory in own))


@lru_cache(maxsize=4)
def _load_library(own: tuple[Path, ...]) -> Library:
    return Library(
        Knowledge.load(PROFILES, *own),
        load_models(PROFILES / "models", *(directory / "models" for directory in own)),
        load_patches(PROFILES / "patches" / "patches.json", *(own_ / "patches" / "patches.json" for own_ in own)),
    )


@dataclass(frozen=True)
class ResolvedProfile:
    """One preset of one profile for one SGLang version.

    ``argv`` holds the flags without the model path and the parallel sizes, which the serving plan adds; ``server_args``
    the settings of the profile before translation; ``patches`` dictionaries ``{name, path, needed, why}`` in
    execution order; ``memory`` an estimate per GPU with its arithmetic; ``engine`` a text that is equal for two presets
    exactly when SGLang would run the same engine; ``nccl`` the oldest release of NCCL that the image can have;
    ``published`` what published launches say of it; ``image_gb`` the size of the image's download, if it is known;
    ``swap_gib`` the swap that each node needs while the weights load.
    """

    name: str
    preset: str
    sglang_version: str
    image: str
    model: dict[str, Any]
    server_args: dict[str, Any]
    argv: list[str]
    env: dict[str, str]
    topology: dict[str, int]
    patches: list[dict[str, Any]]
    sampling: dict[str, Any]
    status: str
    expected: dict[str, Any]
    findings: list[Finding]
    hardware: str = "gb10"
    engine: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    nccl: str = "2.0"
    published: list[str] = field(default_factory=list)
    image_gb: float | None = None
    swap_gib: float = 0


def overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one mapping over another recursively; null removes a key."""
    merged = dict(base)
    for key, value in top.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = overlay(merged[key], value)
        else:
            merged[key] = value
    return merged


def _layers(profile: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a preset and the presets that it is based on, base first; raise ValueError if one does not exist."""
    presets: Mapping[str, Any] = profile.get("presets") or {}
    layers: list[Mapping[str, Any]] = []
    visited: list[str] = []
    while name:
        if name in visited:
            raise ValueError(f"profile {profile.get('name')}: presets based on each other: {' -> '.join(visited)}")
        if name not in presets:
            close = get_close_matches(name, list(presets), n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(presets) or 'none'}"
            raise ValueError(f"profile {profile.get('name')}: no preset {name}; {hint}")
        visited.append(name)
        layers.insert(0, presets[name] or {})
        name = layers[0].get("based_on") or ""
    return layers


def merge(profile: Mapping[str, Any], preset: str | None, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the profile merged with a preset and the user's overrides; raise ValueError for an unknown preset."""
    name = preset or profile.get("default_preset") or next(iter(profile.get("presets") or {}), "")
    merged = {key: value for key, value in profile.items() if key not in ("presets", "default_preset")}
    for layer in (*_layers(profile, name), overrides or {}):
        merged = overlay(merged, {key: layer[key] for key in (*OVERLAYS, *PLAIN) if key in layer})
    merged["preset"] = name
    return merged


def select_image(images: Sequence[Mapping[str, Any]], version: Version) -> Mapping[str, Any] | None:
    """Return the image that the profile lists for a version: the exact version's, else one of the same release."""
    same = [entry for entry in images if Version.parse(str(entry["sglang"])).release == version.release]
    exact = [entry for entry in same if Version.parse(str(entry["sglang"])) == version]
    return next(iter(exact or same), None)


def resolve(
    profile: Mapping[str, Any],
    preset: str | None = None,
    sglang_version: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    library: Library | None = None,
    platform: str | None = None,
    readings: Sequence[float | None] = (),
) -> ResolvedProfile:
    """Resolve a preset for a version; return the result with all findings.

    ``platform`` is the platform of the nodes, if it is known. ``readings`` is the memory (GiB) of the nodes in the
    order in which the group takes them, None where a host was not read. Raises ValueError if the preset does not exist
    or the version is invalid; every other problem becomes a finding.
    """
    library = library or Library.load()
    merged = merge(profile, preset, overrides)
    name = str(merged["name"])
    where = f"{name}/{merged['preset']}" if merged["preset"] else name
    version = Version.parse(str(sglang_version or merged["sglang_version"]))
    history = library.knowledge.history
    chosen = select_image(merged.get("images") or [], version)
    image = str(merged.get("image") or (chosen or {}).get("image") or "")
    listed = chosen if chosen is not None and image == chosen.get("image") else {}
    carries = tuple(listed.get("carries") or ())
    hardware = str(merged.get("hardware") or "gb10")
    server_args = dict(merged.get("server_args") or {})
    env = {str(key): str(value) for key, value in (merged.get("env") or {}).items()}
    topology = {"nodes": 1, "tp": 1, "pp": 1, "ep": 1, **(merged.get("topology") or {})}
    model, facts = _model(merged.get("model") or {}, server_args, library.models)

    patches = select_patches(library.patches, merged.get("patches") or [], version, where, carries)
    settings, findings = with_sampling(server_args, merged.get("sampling") or {}, where)
    written_for = Version.parse(str(merged["sglang_version"]))
    catalogue, source = (history.nearest(of)[0].with_fork(carries) for of in (version, written_for))
    argv, rendered = render_argv(settings, catalogue, history, where, source)
    env, dropped = translate_env(env, written_for, version, where)
    findings += [*rendered, *dropped, *status_findings(merged, version, where)]
    needed = tuple(str(patch["name"]) for patch in patches.chosen if patch["needed"])
    gpus = max(1, topology["tp"] * topology["pp"] // max(1, topology["nodes"])) if hardware != "gb10" else 1
    setting = Setting(hardware if hardware in GPUS else "gb10", gpus, carries, needed, env)
    full = ["--model-path", str(model["path"]), *argv, *topology_argv(topology)]
    report: Report = check(library.knowledge, str(version), full, facts, setting, where)
    draft = find_draft(library.models, model["draft"])
    weighed = _weighed(find(library.models, model["repo"]), model)
    known = [reading for reading in readings[: topology["nodes"]] if reading]
    memory = estimate(weighed, report.context, draft, setting.gpu, where, min(known, default=None))
    # In a pasted command line an abbreviation is only a warning; in a profile it is an error, because a profile is also
    # used with later releases, which may not accept the abbreviation.
    judged = [replace(f, severity="error") if f.rule == "argparse.abbrev" else f for f in report.findings]
    refused = {finding.key for finding in rendered if finding.rule == "translate.refused"}
    judged = [f for f in judged if f.rule != "flag.too_new" or f.key not in refused]
    findings += [*judged, *memory.findings, *patches.findings]
    findings += hardware_findings(hardware, platform, where)
    releases = [str(entry["sglang"]) for entry in merged.get("images") or []]
    findings += image_findings(chosen, image, version, where, releases)
    findings += secret_findings(server_args, env, where)
    return ResolvedProfile(
        name=name,
        preset=str(merged["preset"]),
        sglang_version=str(version),
        image=image,
        model=model,
        server_args=server_args,
        argv=argv,
        env=env,
        topology=topology,
        patches=patches.chosen,
        sampling=dict(merged.get("sampling") or {}),
        status=str(merged.get("status") or "untested"),
        expected=dict(merged.get("expected") or {}),
        findings=sort_findings({str(finding): finding for finding in findings}.values()),
        hardware=hardware,
        engine=report.engine,
        changes=[asdict(change) for change in report.changes],
        memory=memory.as_dict(),
        nccl=oldest_nccl(catalogue, carries),
        published=report.published,
        image_gb=listed.get("gb"),
        swap_gib=float(merged.get("swap_gib") or 0),
    )


def _weighed(known: Model | None, model: Mapping[str, Any]) -> Model | None:
    """Return the facts of the model with the size of the weights from the profile, if the profile gives it."""
    if model.get("weights_gb") is None or not model.get("arch"):
        return known
    base = known or Model(str(model["repo"]), str(model["arch"]), "the profile")
    return replace(base, weights_gb=float(model["weights_gb"]))


def _model(
    given: Mapping[str, Any], server_args: Mapping[str, Any], models: Mapping[str, Model]
) -> tuple[dict[str, Any], Facts]:
    """Return the model as it will be loaded, and the facts that rules need; values of the profile take precedence."""
    repo = str(given.get("repo") or "")
    known = find(models, repo)
    draft_path = server_args.get("speculative_draft_model_path")
    stated = {name: given.get(name) for name in ("arch", "quantization", "moe", "max_context")}
    own = Facts(**stated, draft_arch=given.get("draft_arch") if draft_path else None)
    facts = facts_for(models, repo, str(draft_path) if draft_path else None, own)
    model = {
        **given,
        "repo": repo,
        "revision": given.get("revision"),
        "path": given.get("path") or repo,
        "arch": facts.arch,
        "draft": draft_path,
        "quantization": facts.quantization,
        "max_context": facts.max_context,
        "weights_gb": given.get("weights_gb") or (known.weights_gb if known else None),
    }
    return model, facts
