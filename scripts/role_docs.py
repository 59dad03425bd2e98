#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of variables, of models and of disk space into the pages; with ``--check`` only compare.

The tables are generated from the roles' argument specs and defaults and from meta/shared_variables.yml; those of models
and of disk space are generated from the profiles.
"""

import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from _collection import IMPORT_ROOT, ROOT, run
from _generated import main, table

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, merge, resolve

SHARED = ROOT / "meta" / "shared_variables.yml"
# Longer defaults are not readable in a table.
LONGEST_DEFAULT = 70

_CODE = re.compile(r"\b(?:C|V|O|RV|M|P|E)\(((?:[^()\\]|\\.)*)\)")
_EMPHASIS = re.compile(r"\b([IB])\(((?:[^()\\]|\\.)*)\)")
_TEMPLATE = re.compile(r"\{\{ ((?:(?!\}\}).)*) \}\}")
_BELOW = re.compile(r"\{\{ (\w+) \| default\('([^']*)'\) \}\}(/\S+)")
_FALLBACK = re.compile(r"\{\{ (gb10_\w+) \| default\((.*?)\) \}\}")


def roles() -> list[str]:
    return sorted(path.parent.parent.name for path in ROOT.glob("roles/*/meta/argument_specs.yml"))


def entry_points(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of every entry point of a role, main first."""
    specs = _load(ROOT / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    return {
        point: specs[point].get("options") or {} for point in sorted(specs, key=lambda name: (name != "main", name))
    }


def defaults(role: str) -> dict[str, Any]:
    path = ROOT / "roles" / role / "defaults" / "main.yml"
    return _load(path) or {} if path.exists() else {}


def shared() -> list[dict[str, Any]]:
    """Return the groups of variables that several roles share."""
    return list(_load(SHARED))


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def markdown(text: str | Iterable[str]) -> str:
    """Return a description with Ansible's markup as Markdown on one line."""
    line = " ".join((text if isinstance(text, str) else " ".join(text)).split())
    line = _CODE.sub(lambda match: f"`{_unescaped(match[1])}`", line)
    return _EMPHASIS.sub(lambda match: ("*" if match[1] == "I" else "**").join(["", _unescaped(match[2]), ""]), line)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def shown_default(value: Any) -> str:
    """Return a default for readers: a fallback in words, and nothing if the value is too long for a table."""
    if isinstance(value, str):
        template = " ".join(value.split())
        if match := _BELOW.fullmatch(template):
            return f"`{match[2]}{match[3]}`, which follows `{match[1]}`"
        if match := _FALLBACK.fullmatch(template):
            fallback = shown_default(yaml.safe_load(match[2]))
            return f"`{match[1]}`, else {fallback or 'empty'}"
        whole = _TEMPLATE.fullmatch(template)
        text = whole[1] if whole else template
    elif value is None:
        return ""
    else:
        text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
        text = text.removesuffix("...\n").strip()
    if not text:
        return ""
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see `defaults/main.yml`"


def meaning(option: Mapping[str, Any]) -> str:
    text = markdown(option["description"])
    if option.get("choices"):
        names = (str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in option["choices"])
        text += f" One of {', '.join(f'`{name}`' for name in names)}."
    return text


def role_tables(role: str) -> str:
    """Return the tables of all variables of a role: those of ``main``, then additional ones of other entry points."""
    values, told, parts = defaults(role), set(), []
    for point, options in entry_points(role).items():
        new = {name: option for name, option in options.items() if name not in told}
        told |= set(new)
        rows = [
            [f"`{name}`", _default_of(option, values.get(name, option.get("default"))), meaning(option)]
            for name, option in new.items()
        ]
        if rows:
            parts += [] if point == "main" else [f"`tasks_from: {point}` also reads:"]
            parts.append(table(["variable", "default", "meaning"], rows))
    return "\n\n".join(parts) or "This role has no variables."


def _default_of(option: Mapping[str, Any], value: Any) -> str:
    return "required" if option.get("required") else shown_default(value)


def shared_table(group: Mapping[str, Any]) -> str:
    rows = []
    for name, variable in group["variables"].items():
        where = variable["where"] + (f", sets `{variable['sets']}`" if "sets" in variable else "")
        rows.append([f"`{name}`", where, _default_of(variable, variable.get("default")), meaning(variable)])
    return table(["variable", "where", "default", "meaning"], rows)


def _weights() -> dict[str, float]:
    """Return the GB of every model by its repository, with a draft model that belongs to it."""
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in ROOT.glob("plugins/profiles/models/*.json")]
    return {model["repo"].lower(): model.get("weights_gb", 0) + model.get("draft_gb", 0) for model in facts}


def disk_table() -> str:
    """Return the size on disk of every profile's model, with the largest of its separate draft models."""
    sizes, rows = _weights(), []
    for path in sorted(ROOT.glob("plugins/profiles/*.yml")):
        profile = _load(path)
        flags = [one.get("server_args") or {} for one in (profile, *(profile.get("presets") or {}).values())]
        drafts = [sizes.get(str(one.get("speculative_draft_model_path")).lower(), 0) for one in flags]
        weights = sizes[profile["model"]["repo"].lower()] + max(drafts)
        rows.append([f"`{path.stem}`", str(profile["topology"]["nodes"]), f"{weights:.0f} GB"])
    return table(["profile", "nodes", "model and draft model, on each node"], rows)


def _rates(preset: Mapping[str, Any]) -> dict[int, float]:
    """Return the published tokens per second of a preset without a context, by the number of users."""
    results = (preset.get("expected") or {}).get("results") or []
    return {one["concurrency"]: one["tokens_per_second"] for one in results if not one.get("context_tokens")}


def best_presets() -> dict[int, list[tuple[str, str, Mapping[str, Any]]]]:
    """Return profile, preset and its published figures by the number of Sparks, one preset of each profile.

    It is the preset with the highest rate of one user, then of all users; without figures the one for current releases.
    """
    found: dict[int, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path in sorted(ROOT.glob("plugins/profiles/*.yml")):
        profile = _load(path)
        if profile.get("hardware", "gb10") != "gb10":
            continue
        able: dict[int, list[tuple[Any, ...]]] = {}
        for name, preset in (profile.get("presets") or {"": {}}).items():
            merged, rates = merge(profile, name, None), _rates(preset)
            if merged["status"] != "broken":
                known = name in ("current", "two-nodes", "one-node"), name == profile.get("default_preset")
                rank = (bool(rates), rates.get(1, 0), max(rates.values(), default=0), *known)
                able.setdefault(merged["topology"]["nodes"], []).append((rank, name, preset))
        for nodes, presets in able.items():
            _rank, name, preset = max(presets, key=lambda one: one[0])
            found.setdefault(nodes, []).append((path.stem, name, preset))
    return dict(sorted(found.items()))


def _peak(profile: Mapping[str, Any], preset: str, library: Library) -> str:
    """Return the GiB that are taken on a Spark when the weights are loaded, and with the caches, before any load."""
    memory = resolve(profile, preset or None, library=library, platform="gb10").memory
    before = memory["total_gib"] - memory["available_gib"]
    weights = before + memory["weights_gib"] + (memory["draft_gib"] or 0)
    return f"{weights:.0f} / {max(weights, before + memory['static_gib']):.0f}"


@functools.cache
def models_tables() -> str:
    """Return the models for each number of Sparks: those with published figures, the fastest first, then the others."""
    parts, sizes, library = [], _weights(), Library.load()
    head = ["model", "weights", "load, GiB", "tok/s, one user", "tok/s, all users", "published by", "served with"]
    for nodes, presets in best_presets().items():
        rows = []
        for name, preset, entry in sorted(presets, key=lambda one: -max(_rates(one[2]).values(), default=0)):
            profile, rates = _load(ROOT / "plugins" / "profiles" / f"{name}.yml"), _rates(entry)
            model, most = profile["model"]["repo"], max(rates, default=1)
            several = f"{rates[most]:g} ({most} users)" if most > 1 else "-"
            source = entry["expected"]["source"].partition(",")[0].partition(":")[0] if rates else "-"
            published = [f"{rates[1]:g}" if 1 in rates else "-", several, source]
            about = [model.partition("/")[2], f"{sizes[model.lower()]:.0f} GB", _peak(profile, preset, library)]
            rows.append([*about, *published, f"`-e profile={name} -e preset={preset}`"])
        parts += [f"**{nodes} Spark{'s' * (nodes > 1)}**", table(head, rows)]
    return "\n\n".join(parts)


def pages() -> dict[Path, dict[str, str]]:
    """Return every page with generated parts, and these parts."""
    groups = {group["id"]: group for group in shared()}
    common = "\n\n".join(f"### {group['title']}\n\n{shared_table(group)}" for group in groups.values())
    links = ", ".join(f"[{role}](../roles/{role}/README.md)" for role in roles())
    result = {ROOT / "roles" / role / "README.md": {"variables": role_tables(role)} for role in roles()}
    result[ROOT / "docs" / "variables.md"] = {"shared": common, "roles": f"{links}."}
    result[ROOT / "docs" / "models.md"] = {"models": models_tables()}
    result[ROOT / "docs" / "prepare.md"] = {"disks": disk_table()}
    result[ROOT / "docs" / "fabric.md"] = {"fabric variables": shared_table(groups["fabric"])}
    return result


if __name__ == "__main__":
    run(lambda: main(__doc__, pages))
