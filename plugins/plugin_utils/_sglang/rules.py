# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules across flags (``profiles/rules.json``) to one set of flags of one release.

Private to the collection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Catalogue, History
from .expression import evaluate
from .items import Item, Parsed, canonical
from .resolve import Change, derive, named_weights
from .translate import spelling

GPUS: dict[str, tuple[int, bool, float]] = {
    "gb10": (121, True, 119.0),
    "b300": (103, False, 268.6),
    "b200": (100, False, 179.0),
    "h200": (90, False, 139.0),
    "h100": (90, False, 79.0),
}
"""Known GPUs: compute capability, whether CPU and GPU share memory, and the visible GiB."""

EVIDENCE = ("measured", "reported", "derived", "refuted")
"""Kinds of evidence: seen on hardware, reported by somebody, read in the source, contradicted by published launches."""

_TRUE = frozenset({"1", "true", "yes", "y", "on", "t"})


@dataclass(frozen=True)
class Facts:
    """Facts about the model: a few values of its config.json; None means unknown, not absent."""

    arch: str | None = None
    draft_arch: str | None = None
    quantization: str | None = None
    moe: bool | None = None
    max_context: int | None = None
    kv_heads: int | None = None
    expert_blocks: int | None = None


@dataclass(frozen=True)
class Setting:
    """The environment of the flags: hardware, extras of the image, variables; ``patches`` is None if unknown."""

    gpu: str = "gb10"
    gpus_per_node: int = 1
    carries: tuple[str, ...] = ()
    patches: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One rule; several rules may share an id, for ranges of releases that behave differently.

    ``flags`` are the spellings that trigger it, each with its counterpart in SGLang if there is one; ``tried`` counts
    the published launches to which it applied: those that worked and those that failed. ``lifted_by`` names what an
    image has to carry, all of it, so that the rule does not apply; where the image is unknown, an error is a warning.
    """

    id: str
    severity: Severity
    key: str
    reason: str
    remedy: str
    source: str
    evidence: str
    when: str | None = None
    first: str | None = None
    last: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    sglang: str = ""
    tried: tuple[int, int] = (0, 0)
    lifted_by: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Rule:
        """Build a rule from an entry of the rules file; raise ValueError if the entry is invalid."""
        missing = {"id", "severity", "key", "reason", "remedy", "source", "evidence"} - set(raw)
        if missing or not (raw.get("when") or raw.get("flags")):
            raise ValueError(f"rule {raw.get('id', '?')}: needs {', '.join(sorted(missing)) or 'when or flags'}")
        for key, known in (("severity", ("error", "warning", "info")), ("evidence", EVIDENCE)):
            if raw[key] not in known:
                raise ValueError(f"rule {raw['id']}: {key} is one of {', '.join(known)}")
        flags, tried = raw.get("flags", {}), raw.get("tried", {})
        read = {
            "flags": flags if isinstance(flags, dict) else dict.fromkeys(flags, ""),
            "tried": (tried.get("works", 0), tried.get("fails", 0)),
        }
        return plain.load(cls, {**raw, **read, "first": raw.get("from"), "last": raw.get("to")})

    @property
    def told_by(self) -> str:
        """Return the evidence of the rule in words: kind, source, and the published launches to which it applied."""
        works, fails = self.tried
        launches = f"; of the published launches, {works} that worked and {fails} that failed" if works + fails else ""
        return f"{self.evidence}: {self.source}{launches}"


@dataclass(frozen=True)
class RuleBook:
    """All rules, and the groups of architectures that they refer to."""

    rules: tuple[Rule, ...]
    groups: Mapping[str, frozenset[str]]


@lru_cache(maxsize=4)
def load_rules(path: Path, *own: Path) -> RuleBook:
    """Read the rules, and own ones where the file exists; raise ValueError that names the invalid rule or file."""
    rules: list[Rule] = []
    groups: dict[str, frozenset[str]] = {}
    for file in (path, *(file for file in own if file.is_file())):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            groups |= {
                name: frozenset(members)
                for name, members in (raw["groups"] if file == path else raw.get("groups", {})).items()
            }
            rules += [Rule.from_dict(entry) for entry in raw["rules"]]
        except (AttributeError, OSError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{file}: not a rules file: {problem}") from problem
    return RuleBook(tuple(rules), groups)


def _defaults(catalogue: Catalogue, history: History) -> dict[str, Any]:
    """Return the default of this release for every canonical key of any release."""
    if catalogue.version not in history.defaults:
        values: dict[str, Any] = {}
        for other in (*history.catalogues, catalogue):
            # Renamed flags come first, so that the default of the newest name counts.
            for flag in sorted(other.flags, key=lambda flag: flag.name not in history.forward):
                default = False if flag.is_switch and flag.default is None else flag.default
                values.update(canonical(history, flag, default if other is catalogue else None))
        history.defaults[catalogue.version] = values
    return dict(history.defaults[catalogue.version])


def _facts(context: dict[str, Any], facts: Facts, setting: Setting, book: RuleBook) -> None:
    arch = facts.arch
    context.update({group: arch in members for group, members in book.groups.items()})
    known = True if context["moe"] or "moe" in (arch or "").lower() else False if context["dense"] else None
    quantization = context["quantization"] or facts.quantization
    modelopt = (facts.quantization or "").startswith("modelopt")
    if quantization == "modelopt" or (modelopt and arch in book.groups["nemotron"]):
        quantization = facts.quantization or quantization  # SGLang reads the method from the checkpoint
    override = _override(context["json_model_override_args"])
    capability, unified, memory = GPUS[setting.gpu]
    env = setting.env
    spec_v2_env = env.get("SGLANG_ENABLE_SPEC_V2")
    context.update(
        arch=arch,
        draft_arch=facts.draft_arch,
        assistant_draft=facts.draft_arch in book.groups["gemma4_assistant"],
        moe=known if facts.moe is None else facts.moe,
        quant=quantization,
        checkpoint_quant=facts.quantization,
        nvfp4=quantization in ("modelopt_fp4", "modelopt_mixed", "nvfp4"),
        sm=capability,
        sm12x=capability // 10 == 12,
        unified=unified,
        gpu_memory=memory,
        gpus_per_node=setting.gpus_per_node,
        carries=setting.carries,
        patches=setting.patches,
        spec_v2_env=spec_v2_env,
        spec_v2=None if spec_v2_env is None else spec_v2_env.lower() in _TRUE,
        pp_spec_env=env.get("SGLANG_ENABLE_PP_SPEC", "").lower() in _TRUE,
        longer_context_env=env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in _TRUE,
        override_readable=override is not None,
        max_context=(override or {}).get("max_position_embeddings", facts.max_context),
        expert_blocks=facts.expert_blocks,
        kv_heads=(override or {}).get("num_key_value_heads", facts.kv_heads),
        prefill_attn=context["prefill_attention_backend"] or context["attention_backend"],
        decode_attn=context["decode_attention_backend"] or context["attention_backend"],
    )


def _architecture(context: dict[str, Any], catalogue: Catalogue, history: History) -> None:
    """Set whether the release has the model's class, and a suggestion if no release has it."""
    arch = context["arch"]
    context["arch_known"] = arch is None or arch in catalogue.architectures
    context["arch_hint"], context["arch_elsewhere"] = "", False
    if context["arch_known"]:
        return
    having = [str(other.version) for other in history.catalogues if arch in other.architectures]
    close = get_close_matches(arch or "", catalogue.architectures, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    context["arch_elsewhere"] = bool(having)
    context["arch_hint"] = f" ({having[0]} to {having[-1]})" if having else meant


def _override(text: Any) -> dict[str, Any] | None:
    """Return the config changes that a command line makes to the checkpoint, or None if they are not a JSON object."""
    try:
        override = json.loads(text or "{}")
    except (TypeError, ValueError):
        return None
    return override if isinstance(override, dict) else None


def _packages(context: dict[str, Any], catalogue: Catalogue, setting: Setting) -> None:
    """Set the package versions that the image carries, else those that the release's wheel pins."""
    for key, name, limit, since in (
        ("transformers", "transformers", "transformers_58", "5.8"),
        ("flashinfer", "flashinfer_python", "flashinfer_0616", "0.6.16"),
    ):
        pinned = Version.find(catalogue.requires.get(name))
        start = f"{key}>="
        carried = Version.find(next((w.removeprefix(start) for w in setting.carries if w.startswith(start)), None))
        context[key] = str(carried or pinned or "an unknown version")
        context[limit] = any(found.within(since, None) for found in (carried, pinned) if found)


def build_context(
    catalogue: Catalogue,
    history: History,
    version: Version,
    parsed: Parsed,
    facts: Facts,
    setting: Setting,
    book: RuleBook,
) -> tuple[dict[str, Any], list[Change]]:
    """Return the names that rules can use: every flag by its newest name, facts, and SGLang's own decisions."""
    context = _defaults(catalogue, history)
    context.update({key: value for key, value in parsed.refused.items() if key in context})
    context.update({key: value for key, value in parsed.values.items() if key in context})
    context["options"] = tuple(item.written for item in parsed.items)
    _facts(context, facts, setting, book)
    _architecture(context, catalogue, history)
    if context["spec_v2"] is None:
        context["spec_v2"] = version.within("0.5.11", None)
    _packages(context, catalogue, setting)
    context["sglang"] = str(version)
    # SGLang switches attention DP off if there is only one group.
    attention_groups = context["dp_size"] if context["enable_dp_attention"] else context["attn_dp_size"]
    context["attention_dp"] = (attention_groups or 1) > 1
    changes = derive(context, version, frozenset(parsed.values))
    context["graph_state"] = "on" if context["decode_graph"] else "off"
    nodes = context["nnodes"] or 1
    context["world"] = (context["tp_size"] or 1) * (context["pp_size"] or 1)
    context["named_gib"] = named_weights(str(context["model_path"] or ""), context["quant"], max(context["world"], 1))
    context["ranks_per_node"] = context["world"] // nodes if nodes > 0 else None
    return context, changes


class _Words(dict[str, Any]):
    """Values for a message; a value that is not set appears as "unset"."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return "unset" if value is None else value


def _finding(rule: Rule, context: Mapping[str, Any], extra: Mapping[str, Any]) -> Finding:
    words = _Words({**context, **extra})
    key = rule.key.format_map(words)
    unsure = rule.lifted_by is not None and rule.severity == "error" and context["patches"] is None
    return Finding(
        "warning" if unsure else rule.severity,
        rule.id,
        key,
        extra.get("value", context.get(key)),
        rule.reason.format_map(words),
        rule.remedy.format_map(words),
        source=rule.told_by,
    )


def _replacements(rule: Rule, item: Item, catalogue: Catalogue, history: History) -> dict[str, Any]:
    """Return the message words for a rule about flag names: the flag, its successor, and its name in the release."""
    here = spelling(item, catalogue, history)
    return {
        "flag": item.written,
        "value": " ".join(item.words) or None,
        "counterpart": rule.flags[item.written],
        "successor": history.successor(item.written) or "the new flag",
        "predecessor": {None: "none, it has no counterpart", "": "none, it always behaves that way"}.get(here, here),
    }


def judge_flags(
    catalogue: Catalogue,
    history: History,
    version: Version,
    parsed: Parsed,
    facts: Facts,
    setting: Setting,
    book: RuleBook,
) -> tuple[list[Finding], list[Change], dict[str, Any]]:
    """Return findings, SGLang's own changes, and the values that the rules used; raise ValueError for a wrong rule."""
    context, changes = build_context(catalogue, history, version, parsed, facts, setting, book)
    applied: list[Finding] = []
    for rule in book.rules:
        applied += [_finding(rule, context, extra) for extra in conditions_met(rule, context, version)]
        if version.within(rule.first, rule.last):
            named = [item for item in parsed.items if item.written in rule.flags]
            applied += [_finding(rule, context, _replacements(rule, item, catalogue, history)) for item in named]
    return applied, changes, context


def conditions_met(rule: Rule, context: Mapping[str, Any], version: Version) -> list[dict[str, Any]]:
    """Return message words for every match of a rule's condition: one per key of the rule, or a single one."""
    if rule.when is None or not version.within(rule.first, rule.last):
        return []
    has = {*context["carries"], *(context["patches"] or ())}
    if rule.lifted_by and has.issuperset(name.format_map(context) for name in rule.lifted_by):
        return []
    cases = [{"name": key, "value": context[key]} for key in rule.keys] or [{}]
    return [case for case in cases if evaluate(rule.when, {**context, **case})]
