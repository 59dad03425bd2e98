# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules across flags (``plugins/profiles/rules.json``) to one set of flags of one release.

Private to the collection.

Allowed are names, numbers, strings, tuples, comparisons, ``and or not in``, ``+ - * // %`` and ``a if b else c``.
Unknown values are None. Order comparisons with None are false and sums with None are None, so a rule about a value
that is not set does not apply. A name that is missing from the context is an error in the rule and raises ValueError.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Catalogue, History, Item, Parsed, canonical
from .models import GPUS, Facts, Setting

# Predict the decisions of SGLang on which the rules and the estimate of memory rest.
#
# This does not replace SGLang's resolver, which ``serve`` asks in the image and ``scripts/sglang_check.py --deep``
# runs.

FROZEN_KV_PATCH = "sglang#24436"
"""The change that introduced FROZEN_KV_MTP; images of 0.5.11 that carry it behave like 0.5.12 in this respect."""

NEMOTRON_RADIX_PATCH = "sglang#27998"
"""The change that lets NemotronH speculate with the radix cache, part of 0.5.14; images of 0.5.13 may carry it."""


BLOCK_DRAFTERS = ("DFLASH", "DSPARK")
"""Drafters that write a block of tokens at once: SGLang always runs one step with one candidate."""


PARAMETERS = re.compile(r"(?<![\d.A-Za-z])(\d+(?:\.\d+)?)([bBT])(?![a-zA-Z])")
FOUR_BITS, EIGHT_BITS = re.compile("FP4|AWQ|INT4|GPTQ|W4A|4.?BIT", re.I), re.compile("FP8|INT8|W8A|8.?BIT", re.I)


def named_weights(name: str, quantization: str | None, world: int) -> float | None:
    """Return the GiB of weights per GPU that a model's name suggests (480B-A35B-FP8); None if it has no size."""
    found = PARAMETERS.search(name.rstrip("/").rpartition("/")[2])
    if found is None:
        return None
    text = f"{name} {quantization or ''}"
    size = 0.55 if FOUR_BITS.search(text) else 1.0 if EIGHT_BITS.search(text) else 2.0
    known = quantization in (None, "fp8", "modelopt_fp8") or size < 1
    billions = float(found[1]) * (1000 if found[2] == "T" else 1)
    return round(billions * (size if known else 0.5) * 1e9 / 2**30 / world, 1)


def mamba_ratio(strategy: str, overlap: bool, radix: bool) -> int:
    """Return the number of Mamba states per running request (kv_cache_configurator._calculate_mamba_ratio)."""
    if not radix:
        return 1
    if strategy == "extra_buffer":
        return 5 if overlap else 4
    return 4 if strategy == "extra_buffer_lazy" else 3


def _speculation(context: dict[str, Any], version: Version) -> None:
    """Set ``spec``, the algorithm that runs, and the draft depth with SGLang's defaults filled in."""
    asked = context["speculative_algorithm"]
    spec = None if asked is None else str(asked).upper()
    if spec in ("NEXTN", "EAGLE"):
        known = version.within("0.5.12", None) or FROZEN_KV_PATCH in context["carries"]
        spec = "FROZEN_KV_MTP" if context["assistant_draft"] and known else "EAGLE"
    steps, topk, draft = (context[f"speculative_{k}"] for k in ("num_steps", "eagle_topk", "num_draft_tokens"))
    eagle = spec in ("EAGLE", "EAGLE3", "STANDALONE")
    if eagle and steps is None and topk is None and draft is None:
        llama = context["arch"] in ("LlamaForCausalLM", "Grok1ForCausalLM") and spec != "STANDALONE"
        steps, topk, draft = (5, 4, 8) if llama else (3, 1, 4)
    if spec in BLOCK_DRAFTERS:
        block, steps, topk = context.get(f"speculative_{spec.lower()}_block_size"), 1, 1
        draft = draft if block is None else block + (spec == "DSPARK")
    if spec == "NGRAM":
        topk, draft = context["speculative_ngram_max_bfs_breadth"], 12 if draft is None else draft
    context.update(spec=spec, eagle_family=eagle, steps=steps, topk=topk, draft_tokens=draft)
    adjusted = eagle and topk == 1 and steps is not None
    context["draft_tokens_run"] = steps + 1 if adjusted else draft
    # Earlier releases sized the caches without the draft, which used memory outside mem_fraction_static.
    context["draft_inside"] = version.within("0.5.14", None)


def _mamba(context: dict[str, Any], version: Version) -> None:
    """Set how SGLang divides the state pool of a hybrid model."""
    # SGLang chooses the strategy after the model's own page size and before that of the attention backend.
    sparse = context["dsa"] or context["dsv4"] or context["arch"] == "Qwen4ExpForConditionalGeneration"
    never = context["no_extra_buffer"] or (
        context["arch"] == "KimiLinearForCausalLM" and version.within(None, "0.5.15")
    )
    context["extra_buffer"] = not never and context["linear_attn_backend"] in (None, "triton")
    strategy = context["mamba_radix_cache_strategy"] or "auto"
    overlap = not context["disable_overlap_schedule"]
    if strategy == "auto":
        # This change allows speculation with the radix cache, which requires the extra_buffer strategy.
        # Without the change, behaviour is that of releases before 0.5.14.
        modern = version.within("0.5.14", None) or (context["spec"] and NEMOTRON_RADIX_PATCH in context["carries"])
        paged = sparse or (context["page_size"] or 1) > 1
        strategy = "extra_buffer" if modern and context["extra_buffer"] and (overlap or paged) else "no_buffer"
    if version.within(None, "0.5.10") and context["spec"] and not context["spec_v2"]:
        overlap = False
    if strategy == "no_buffer" and context["spec"] is None and not context["disable_radix_cache"]:
        overlap = False
    ratio = mamba_ratio(strategy, overlap, not context["disable_radix_cache"])
    pool = context["max_mamba_cache_size"]
    context.update(
        mamba_strategy=strategy,
        mamba_ratio=ratio if context["hybrid"] else None,
        mamba_parallel=pool // ratio if context["hybrid"] and pool is not None else None,
        # States of draft tokens use the share of the states; earlier releases reserved memory for them first.
        mamba_jointly=version.within("0.5.13", None),
    )


def _graphs(context: dict[str, Any], version: Version, given: frozenset[str]) -> None:
    """Set the reason why SGLang disables the prefill graph on its own, or None."""
    # Since 0.5.15 the prefill graph is breakable, which works with some multimodal models since 0.5.16.
    breakable = context["breakable_multimodal"] and version.within("0.5.16", None)
    reasons: list[tuple[bool, str]] = [
        (context["no_prefill_graph"], "the architecture is on SGLang's list"),
        (context["multimodal"] and not breakable, "the architecture is multimodal"),
        (bool(context["spec"]) and version.within(None, "0.5.10"), "speculative decoding is on"),
        ((context["pp_size"] or 1) > 1, "pp_size is above 1"),
        (context["moe_a2a_backend"] not in (None, "none"), "moe_a2a_backend is set"),
        (bool(context["enable_lora"] or context["lora_paths"]), "LoRA is on"),
        (bool(context["enable_dp_attention"]) and version.within(None, "0.5.21"), "attention DP is on"),
        (bool(context["cpu_offload_gb"]) or bool(context["enable_hierarchical_cache"]), "the cache is offloaded"),
        ("gguf" in (context["load_format"], context["quantization"]), "the checkpoint is GGUF"),
    ]
    if version.within(None, "0.5.13") and "--disable-piecewise-cuda-graph" not in context["options"]:
        # --disable-cuda-graph maps to the newer names of both phases, but here it disables only decode graphs.
        context["cuda_graph_backend_prefill"] = None
    explicit = context["cuda_graph_backend_prefill"] if "cuda_graph_backend_prefill" in given else None
    forced = explicit == "tc_piecewise" or (explicit is not None and version.within("0.5.14", None))
    why = None if forced else next((reason for applies, reason in reasons if applies), None)
    exists = version.within("0.5.10", None)
    context["piecewise_off"] = why if exists else None
    off = explicit == "disabled"
    context["prefill_graph"] = exists and why is None and not off and not context["disable_prefill_cuda_graph"]
    context["decode_graph"] = (
        context["cuda_graph_backend_decode"] != "disabled" and not context["disable_decode_cuda_graph"]
    )


def derive(context: dict[str, Any], version: Version, given: frozenset[str]) -> None:
    """Add SGLang's own decisions to a context."""
    _speculation(context, version)
    _mamba(context, version)
    _graphs(context, version, given)
    default_slots = context["spec"] in ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP", "NGRAM", *BLOCK_DRAFTERS)
    asked = context["max_running_requests"]
    context["slots"] = 48 if default_slots and asked is None else asked
    # Waterfill, named after deepep up to 0.5.15, selects the dispatcher deepep.
    waterfill = context["enable_waterfill"] or context["enable_deepep_waterfill"]
    spread = context["moe_a2a_backend"] not in (None, "none") or waterfill
    context["ep_run"] = context["tp_size"] if spread else context["ep_size"]


# The names that rules can use: the flags of a release, facts, and what SGLang decides itself.

_TRUE = frozenset({"1", "true", "yes", "y", "on", "t"})


Groups = Mapping[str, frozenset[str]]
"""Architectures by the name of their group, to which rules refer."""


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


def _facts(context: dict[str, Any], facts: Facts, setting: Setting, groups: Groups) -> None:
    arch = facts.arch
    context.update({group: arch in members for group, members in groups.items()})
    known = True if context["moe"] or "moe" in (arch or "").lower() else False if context["dense"] else None
    quantization = context["quantization"] or facts.quantization
    modelopt = (facts.quantization or "").startswith("modelopt")
    replaced = modelopt and arch in groups["nemotron"]
    if quantization == "modelopt" or replaced:
        quantization = facts.quantization or quantization  # SGLang reads the method from the checkpoint
    override = _override(context["json_model_override_args"])
    capability, unified, memory = GPUS[setting.gpu]
    env = setting.env
    spec_v2_env = env.get("SGLANG_ENABLE_SPEC_V2")
    context.update(
        arch=arch,
        draft_arch=facts.draft_arch,
        assistant_draft=facts.draft_arch in groups["gemma4_assistant"],
        moe=known if facts.moe is None else facts.moe,
        quant=quantization,
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
        longer_context_env=env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in _TRUE,
        max_context=_max_context(override, facts.max_context),
        expert_blocks=facts.expert_blocks,
        kv_heads=_count(override, "num_key_value_heads", facts.kv_heads),
        prefill_attn=context["prefill_attention_backend"] or context["attention_backend"],
        decode_attn=context["decode_attention_backend"] or context["attention_backend"],
    )


def _architecture(context: dict[str, Any], catalogue: Catalogue, history: History) -> None:
    """Set whether the release has the model's class, and a suggestion if no release has it."""
    arch = context["arch"]
    context["arch_known"] = arch is None or arch in catalogue.architectures
    context["arch_hint"] = ""
    if context["arch_known"]:
        return
    having = [str(other.version) for other in history.catalogues if arch in other.architectures]
    close = get_close_matches(arch or "", catalogue.architectures, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    context["arch_hint"] = f" ({having[0]} to {having[-1]})" if having else meant


def _override(text: Any) -> dict[str, Any]:
    """Return the changes that a command line makes to the checkpoint's config, also those to its part for text."""
    try:
        override = json.loads(text or "{}")
    except (TypeError, ValueError):
        return {}
    if not isinstance(override, dict):
        return {}
    part = override.get("text_config")
    return {**override, **part} if isinstance(part, dict) else override


def _max_context(override: Mapping[str, Any], stated: int | None) -> int | None:
    """Return the context that the changed config allows (get_context_length in hf_transformers)."""
    most, scaling = _count(override, "max_position_embeddings", stated), override.get("rope_scaling")
    if most is None or not isinstance(scaling, dict) or "original_max_position_embeddings" in scaling:
        return most
    factor = scaling.get("factor", 1)
    known = isinstance(factor, (int, float)) and isfinite(factor)
    return int(most * factor) if known and scaling.get("rope_type") != "llama3" else most


def _count(override: Mapping[str, Any], key: str, stated: int | None) -> int | None:
    """Return a number of the changed config; nothing is known of one that is no number."""
    value = override.get(key, stated)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _packages(context: dict[str, Any], catalogue: Catalogue, setting: Setting) -> None:
    """Set the version of transformers that the image carries, else the one that the release's wheel pins."""
    start = "transformers>="
    pinned = Version.find(catalogue.requires.get("transformers"))
    carried = Version.find(next((w.removeprefix(start) for w in setting.carries if w.startswith(start)), None))
    context["transformers"] = str(carried or pinned or "an unknown version")
    context["transformers_58"] = any(found.within("5.8", None) for found in (carried, pinned) if found)


def build_context(
    catalogue: Catalogue,
    history: History,
    version: Version,
    parsed: Parsed,
    facts: Facts,
    setting: Setting,
    groups: Groups,
) -> dict[str, Any]:
    """Return the names that rules can use: every flag by its newest name, facts, and SGLang's own decisions."""
    context = _defaults(catalogue, history)
    context.update({key: value for key, value in parsed.refused.items() if key in context})
    context.update({key: value for key, value in parsed.values.items() if key in context})
    context["options"] = tuple(item.written for item in parsed.items)
    _facts(context, facts, setting, groups)
    _architecture(context, catalogue, history)
    if context["spec_v2"] is None:
        context["spec_v2"] = version.within("0.5.11", None)
    _packages(context, catalogue, setting)
    context["sglang"] = str(version)
    # SGLang switches attention DP off if there is only one group.
    attention_groups = context["dp_size"] if context["enable_dp_attention"] else context["attn_dp_size"]
    context["attention_dp"] = (attention_groups or 1) > 1
    derive(context, version, frozenset(parsed.values))
    context["graph_state"] = "on" if context["decode_graph"] else "off"
    nodes = context["nnodes"] or 1
    context["world"] = (context["tp_size"] or 1) * (context["pp_size"] or 1)
    context["named_gib"] = named_weights(str(context["model_path"] or ""), context["quant"], max(context["world"], 1))
    context["ranks_per_node"] = context["world"] // nodes if nodes > 0 else None
    return context


_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SAME: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@lru_cache(maxsize=1024)
def _compile(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise ValueError(f"{text!r} is not an expression: {problem.msg}") from problem


def evaluate(text: str, context: Mapping[str, Any]) -> Any:
    """Return the value of an expression; raise ValueError if it is malformed or uses an unknown name."""
    return _Evaluator(text, context).visit(_compile(text))


class _Evaluator(ast.NodeVisitor):
    """Evaluates an expression node by node; node types without a method here are not allowed."""

    def __init__(self, text: str, context: Mapping[str, Any]) -> None:
        self.text, self.context = text, context

    def generic_visit(self, node: ast.AST) -> Any:
        raise ValueError(f"{self.text!r}: {type(node).__name__} is not allowed in a rule")

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.context:
            raise ValueError(f"{self.text!r}: unknown name {node.id!r}")
        return self.context[node.id]

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.visit(item) for item in node.elts)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        result: Any = not wanted
        for part in node.values:
            result = self.visit(part)
            if bool(result) is wanted:
                break
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return not operand
        return -operand if isinstance(node.op, ast.USub) else self.generic_visit(node.op)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body) if self.visit(node.test) else self.visit(node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return _sum(_SUMS.get(type(node.op)), self.visit(node.left), self.visit(node.right), self.text)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.visit(right_node)
            if not _compare(op, left, right):
                return False
            left = right
        return True


def _sum(apply: Callable[[Any, Any], Any] | None, left: Any, right: Any, text: str) -> Any:
    if apply is None:
        raise ValueError(f"{text!r}: this operator is not allowed in a rule")
    if left is None or right is None or (apply in (operator.floordiv, operator.mod) and right == 0):
        return None
    return apply(left, right)


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    if type(op) in _SAME:
        return bool(_SAME[type(op)](left, right))
    if isinstance(op, (ast.In, ast.NotIn)):
        # A word in a text or a member of a group; unset values contain nothing and are in nothing.
        found = right is not None and left is not None and left in right
        return found if isinstance(op, ast.In) else not found
    return left is not None and right is not None and bool(_ORDER[type(op)](left, right))


EVIDENCE = ("measured", "reported", "derived")
"""Kinds of evidence: seen on hardware, reported by somebody, read in the source."""


@dataclass(frozen=True)
class Rule:
    """One rule; several rules may share an id, for ranges of releases that behave differently.

    ``flags`` are the spellings that trigger it, each with its counterpart in SGLang if there is one; ``tried`` counts
    the published launches to which it applied: those that worked and those that failed. ``lifted_by`` names what an
    image has to carry, all of it, so that the rule does not apply; where the image is unknown, an error is a warning.
    ``verified`` is the newest release for which the rule was checked: on later ones an error is a warning too.
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
    verified: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
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
    groups: Groups


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
    unread = rule.verified is not None and not Version.parse(context["sglang"]).within(None, rule.verified)
    unsure = unread or (rule.lifted_by is not None and context["patches"] is None)
    until = f" (verified until {rule.verified}, not for this release)" if unread else ""
    return Finding(
        "warning" if unsure and rule.severity == "error" else rule.severity,
        rule.id,
        key,
        extra.get("value", context.get(key)),
        rule.reason.format_map(words) + until,
        rule.remedy.format_map(words),
        source=rule.told_by,
    )


def judge_flags(book: RuleBook, context: Mapping[str, Any], version: Version, items: Sequence[Item]) -> list[Finding]:
    """Return the findings about flags whose names and facts are in ``context``; raise ValueError for a wrong rule."""
    applied: list[Finding] = []
    for rule in book.rules:
        if version.within(rule.first, rule.last):
            applied += [_finding(rule, context, extra) for extra in conditions_met(rule, context)]
            for item in items:
                if item.written in rule.flags:
                    words = {"flag": item.written, "value": " ".join(item.words) or None}
                    applied.append(_finding(rule, context, {**words, "counterpart": rule.flags[item.written]}))
    return applied


def conditions_met(rule: Rule, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return message words for every match of a rule's condition: one per key of the rule, or a single one."""
    if rule.when is None:
        return []
    has = {*context["carries"], *(context["patches"] or ())}
    if rule.lifted_by and has.issuperset(name.format_map(context) for name in rule.lifted_by):
        return []
    cases = [{"name": key, "value": context[key]} for key in rule.keys] or [{}]
    return [case for case in cases if evaluate(rule.when, {**context, **case})]
