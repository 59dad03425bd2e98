# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolve a profile and one of its presets to the flags for one SGLang version. Private to the collection.

This runs only on the controller, because it reads the collection's catalogues, rules, facts and patches. Profiles are
plain mappings, which ``_sglang/profile_files.py`` reads from YAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._controller.data import PROFILES, Rules
from .catalogue import Catalogue, Flag, History, Item, translate
from .check import Knowledge, Report, check
from .memory import estimate
from .models import GPUS, Facts, Model, Setting, facts_for, find, find_draft, load_models
from .profile_files import (
    OWNERS,
    context_findings,
    image_findings,
    images_of,
    look_up,
    newest,
    official_images,
    secret_findings,
    select_image,
    status_findings,
    with_sampling,
    with_words,
)

_finding = Rules("_sglang").finding

ENV_RANGES: dict[str, tuple[str | None, str | None]] = {"SGLANG_ENABLE_SPEC_V2": (None, "0.5.13")}
"""Variables that SGLang reads only in these releases; later releases always do what they enabled (environ.py)."""


def translate_env(
    env: Mapping[str, str], written_for: Version, version: Version, where: str
) -> tuple[dict[str, str], list[Finding]]:
    """Remove variables that only older releases read, because the given release always does what they enable."""
    kept: dict[str, str] = {}
    findings: list[Finding] = []
    for key, value in env.items():
        extent = ENV_RANGES.get(key)
        if extent is not None and written_for.within(*extent) and not version.within(*extent):
            findings.append(_finding("translate.changed/variable", value, where, key=key, version=version))
        else:
            kept[key] = value
    return kept, findings


def topology_argv(topology: Mapping[str, int]) -> list[str]:
    """Return the flags of the parallel sizes as rank 0 gets them."""
    argv = ["--tp-size", str(topology["tp"]), "--pp-size", str(topology["pp"]), "--ep-size", str(topology["ep"])]
    if topology["nodes"] > 1:
        argv += ["--nnodes", str(topology["nodes"]), "--node-rank", "0", "--dist-init-addr", "192.0.2.1:20000"]
    return argv


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, bool)) else str(value)


def _mismatch(key: str, value: Any, flag: Flag | None, where: str) -> list[Finding]:
    """Return a finding if a switch is given a value, or a flag with a value is given true or false."""
    if flag is None or value is None:
        return []
    if isinstance(value, bool) and not flag.is_switch and flag.nargs != "?":
        example = f", such as {flag.default!r}" if flag.default is not None else ""
        return [_finding("flag.missing_value/setting", value, where, key=key, example=example)]
    if flag.is_switch and not isinstance(value, bool):
        return [_finding("flag.unexpected_value/setting", value, where, key=key)]
    return []


def _item(key: str, value: Any, flag: Flag | None) -> Item | None:
    """Return one setting as a flag; None if leaving out the flag has the same effect."""
    name = key.replace("_", "-")
    option, negative = f"--{name}", f"--no-{name}"
    if value is True:
        return Item(option, option)
    if value is False and flag is not None and negative in flag.names:
        return Item(negative, negative)
    if value is None or value is False:
        return None
    if isinstance(value, (list, tuple)):
        whole = flag is not None and flag.nargs is None and flag.kind in ("loads", "json_list_type")
        words = (json.dumps(value),) if whole else tuple(_word(part) for part in value)
        return Item(option, option, words)
    word = _word(value)
    # A value that begins with a dash would be read as a flag; the form --flag=value prevents this.
    return Item(option, option, (word,), inline=word.startswith("-"))


def render_argv(
    server_args: Mapping[str, Any],
    catalogue: Catalogue,
    history: History,
    where: str = "",
    written_for: Catalogue | None = None,
) -> tuple[list[str], list[Finding]]:
    """Return the flags in the release's spelling, with findings about translated and untranslatable settings."""
    findings: list[Finding] = []
    items: list[Item] = []
    for key, value in server_args.items():
        if key in OWNERS:
            rule = "profile.key.owned/place" if "." in OWNERS[key] else "profile.key.owned"
            findings.append(_finding(rule, value, where, key=key, owner=OWNERS[key]))
            continue
        option = "--" + key.replace("_", "-")
        flag = catalogue.options.get(option) or history.known(option)
        mismatch = _mismatch(key, value, flag, where)
        findings += mismatch
        item = None if mismatch else _item(key, value, flag)
        if item is not None:
            items.append(item)
    done, notes = translate(items, catalogue, history, written_for)
    # The parser reports unknown flags itself, with a suggestion.
    findings += [note for note in notes if note.severity != "error" or history.span(note.key) is not None]
    return [word for item in done for word in item.argv], findings


@dataclass(frozen=True)
class Patch:
    """A change to an installed SGLang, applied before the server starts; the range names the releases that need it."""

    name: str
    order: int
    file: str
    reason: str
    source: str
    first: str | None = None
    last: str | None = None


@lru_cache(maxsize=4)
def load_patches(path: Path, *own: Path) -> tuple[Patch, ...]:
    """Read the lists of patches, own ones where the file exists; raise ValueError if one is invalid."""
    patches: list[Patch] = []
    for file in (path, *(file for file in own if file.is_file())):
        folder = "plugins/profiles/patches" if file == path else str(file.parent.absolute())
        try:
            for raw in json.loads(file.read_text(encoding="utf-8"))["patches"]:
                place = {"file": f"{folder}/{raw['file']}", "first": raw.get("from"), "last": raw.get("to")}
                patches.append(plain.load(Patch, {**raw, **place}))
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{file}: not a list of patches: {problem}") from problem
    return tuple(sorted(patches, key=lambda patch: patch.order))


def select_patches(
    known: Sequence[Patch], names: Sequence[str], version: Version, where: str, carries: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Return the named patches in order, each marked as needed or not by the version and image, and the findings."""
    chosen: list[dict[str, Any]] = []
    findings: list[Finding] = []
    by_name = {patch.name: patch for patch in known}
    for name in names:
        if name not in by_name:
            close = get_close_matches(name, by_name, n=1)
            remedy = f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(by_name)}"
            findings.append(_finding("patch.unknown", name, where, hint=remedy))
    for patch in known:
        if patch.name not in names:
            continue
        in_range = version.within(patch.first, patch.last)
        needed = in_range and patch.name not in carries
        why = patch.reason if needed else f"the image carries it: {patch.reason}"
        if not in_range:
            limits = [f"from {patch.first}" if patch.first else "", f"up to {patch.last}" if patch.last else ""]
            extent = " ".join(part for part in limits if part)
            why = f"SGLang {version} does not need it (only {extent}): {patch.reason}"
            findings.append(_finding("patch.obsolete", patch.name, where, extent=extent, source=patch.source))
        chosen.append({"name": patch.name, "path": patch.file, "needed": needed, "why": why})
    return chosen, findings


# Requires-Dist nvidia-nccl-cu12 or -cu13 of torch's Linux wheels on PyPI, for the releases of torch that SGLang pins.
_OF_TORCH = {"2.9.1": "2.27.5", "2.11.0": "2.28.9", "2.13.0": "2.29.7", "2.14.1": "2.30.7"}
_CARRIES = "nccl>="


def oldest_nccl(catalogue: Catalogue, carries: Sequence[str]) -> str:
    """Return the NCCL that the image carries by its entry in the profile, else the one that the release's torch pins.

    A torch that is not in the table has at least the NCCL of the release before it.
    """
    torch = Version.find(catalogue.requires.get("torch"))
    known = [nccl for release, nccl in _OF_TORCH.items() if torch and torch.within(release, None)]
    carried = [word.removeprefix(_CARRIES) for word in carries if word.startswith(_CARRIES)]
    return (carried or known or ["2.0"])[-1]


OVERLAYS = ("server_args", "env", "topology", "sampling", "model", "expected")
PLAIN = (
    "description",
    "status",
    "source",
    "sglang_version",
    "patches",
    "image",
    "hardware",
    "swap_gib",
    "stuck_after",
    "verified",
)


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
    execution order; ``memory`` an estimate per GPU with its arithmetic; ``nccl`` the oldest release of NCCL that the
    image can have; ``published`` what published launches say of it; ``image_gb`` the size of the image's download, if
    it is known, and ``image_note`` on what it runs; ``swap_gib`` the swap that each node needs while the weights load;
    ``stuck_after`` the seconds after which a head without a token is stuck, or 0 for the supervisor's own.
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
    status: str
    findings: list[Finding]
    hardware: str = "gb10"
    memory: dict[str, Any] = field(default_factory=dict)
    nccl: str = "2.0"
    published: list[str] = field(default_factory=list)
    image_gb: float | None = None
    image_note: str = ""
    swap_gib: float = 0
    stuck_after: int = 0


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
    merged = merge(profile, preset, with_words(overrides or {}))
    name = str(merged["name"])
    where = f"{name}/{merged['preset']}" if merged["preset"] else name
    version = Version.parse(str(sglang_version or merged["sglang_version"]))
    history = library.knowledge.history
    images = (*images_of(merged), *official_images())
    chosen = select_image(images, version)
    image = str(merged.get("image") or (chosen.reference if chosen else ""))
    listed = chosen if chosen and image == chosen.reference else look_up(images, image)
    carries = listed.carries if listed else ()
    hardware = str(merged.get("hardware") or "gb10")
    server_args = dict(merged.get("server_args") or {})
    env = {str(key): str(value) for key, value in (merged.get("env") or {}).items()}
    topology = {"nodes": 1, "tp": 1, "pp": 1, "ep": 1, **(merged.get("topology") or {})}
    model, facts = _model(merged.get("model") or {}, server_args, library.models)

    patches, unneeded = select_patches(library.patches, merged.get("patches") or [], version, where, carries)
    settings, findings = with_sampling(server_args, merged.get("sampling") or {}, where)
    written_for = Version.parse(str(merged["sglang_version"]))
    catalogue, source = (history.nearest(of)[0].with_fork(carries) for of in (version, written_for))
    argv, rendered = render_argv(settings, catalogue, history, where, source)
    env, dropped = translate_env(env, written_for, version, where)
    findings += [*rendered, *dropped, *status_findings(merged, version, where)]
    needed = tuple(str(patch["name"]) for patch in patches if patch["needed"])
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
    findings += [*judged, *memory.findings, *unneeded]
    findings += context_findings(merged, facts.max_context, image, where)
    if platform not in (None, hardware):
        findings.append(_finding("profile.hardware", hardware, where, platform=platform))
    contains, pinned = (listed.sglang, listed.reference) if listed else ("", "")
    findings += image_findings(image, contains, pinned, version, where, newest(images).sglang)
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
        patches=patches,
        status=str(merged.get("status") or "untested"),
        findings=sort_findings({str(finding): finding for finding in findings}.values()),
        hardware=hardware,
        memory=memory.as_dict(),
        nccl=oldest_nccl(catalogue, carries),
        published=report.published,
        image_gb=listed.gb if listed else None,
        image_note=listed.describe(hardware) if listed else "",
        swap_gib=float(merged.get("swap_gib") or 0),
        stuck_after=int(merged.get("stuck_after") or 0),
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
    asked = server_args.get("speculative_draft_model_path")
    draft_path = None if asked is None else str(asked)
    stated = {name: given.get(name) for name in ("arch", "quantization", "moe", "max_context")}
    own = Facts(**stated, draft_arch=given.get("draft_arch") if draft_path else None)
    facts = facts_for(models, repo, draft_path, own)
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
