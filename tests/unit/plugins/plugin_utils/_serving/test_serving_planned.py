# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what is planned for options of an inventory, and what it needs of the nodes, with what is stored."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import find_needs, plan_serving
from ring_samples import cabled_plan
from role_samples import role_values
from serving_samples import fabric
from sglang_cases import PROFILES
from stored import compare, said, say_words

NODES = [f"spark{number}" for number in range(1, 5)]
GEMMA = (PROFILES / "gemma-4-31b-it.yml").read_text(encoding="utf-8")
LOCAL = GEMMA.replace("repo: google/gemma-4-31B-it", "repo: my/own\n  path: /srv/own") + "swap_gib: 48\n"
UNKNOWN = [{"name": name} for name in ("rail0", "o/rail1", "", None)] + [
    {"name": "a", "resource": "r/v"},
    {"resources": 1},
]
FALLBACK = {"preset": "current", "fallback_preset": "two-nodes"}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "fallback": FALLBACK | {"models_dir": "/srv/models"},
    "fallback, held by others": FALLBACK | {"taken": [{"instance": "o", "node": "spark4", "vf_index": 0}]},
    "fallback of other models": {"preset": "baseline", "fallback_preset": "two-nodes", "sglang_version": "0.5.21"},
    "fallback that does not fit": FALLBACK
    | {"fallback_preset": "one-node", "overrides": {"server_args": {"mem_fraction_static": 0.45}}},
    "fallback of a mistake": FALLBACK | {"fallback_preset": "x", "fallback_after": 1},
    "fallback and topology": FALLBACK | {"overrides": {"topology": {"nodes": 4, "tp": 4}, "env": {"A": "1"}}},
    "two nodes": {"preset": "two-nodes", "instance": "Mine", "metrics": False},
    "two nodes of a preset for four": {"preset": "current", "nodes": NODES[:2]},
    "three nodes": {"preset": "current", "nodes": NODES[:3]},
    "all idle nodes held": {
        "preset": "one-node",
        "taken": [{"instance": "o", "node": n, "vf_index": 1} for n in NODES[1:]],
    },
    "readings": {"preset": "current", "readings": [119.0, 100.0, None, 110.0]},
    "held": {"preset": "current", "held": {"spark1": 30.0}, "loads": {"spark1": []}},
    "networks": {"preset": "current", "networks": UNKNOWN, "namespace": "models", "kubeconfig": "/k"},
    "networks of others": {
        "preset": "two-nodes",
        "networks": [{"name": "o/rail0"}, {"name": "rail1", "resource": "r/v"}],
        "namespace": "models",
        "fabric": None,
    },
    "a ring": {"preset": "current", "fabric": cabled_plan(4), "env": {"NCCL_IB_TC": "x", "NCCL_IB_SL": ""}},
    "sockets": {"preset": "two-nodes", "transport": "socket", "env": {"NCCL_IB_DISABLE": "1"}},
    "no fabric": {"preset": "current", "fabric": None},
    "waived": {
        "preset": "current",
        "waive": ["attn.gemma4.allow", "x", "y"],
        "overrides": {"server_args": {"attention_backend": "flashinfer"}},
    },
    "wrong": {"preset": "x", "port": 80},
    "wrong overrides": {"preset": "current", "overrides": {"topology": {"tp": "x"}, "envs": {}, "env": {"A": "1"}}},
    "no release": {"preset": "current", "sglang_version": "latest"},
    "images from": {"preset": "current", "images_from": "mirror/sglang:v{version}"},
    **{
        f"image {image} {version}": {"preset": "current", "image": image, "sglang_version": version}
        for image in (
            "registry.example/own:latest",
            "registry.example/own:v0.5.22",
            "docker.io/lmsysorg/sglang:v0.5.21",
            "docker.io/xomoxcc/dgx-spark-sglang:0.5.11-gemma4-sm121",
        )
        for version in ("", "0.5.20")
    },
    "staged by the owner": {"profile": "local", "models_dir": "/srv"},
    "staged by the owner elsewhere": {"profile": "local", "models_dir": "/srv/models", **FALLBACK},
    "without a default": {"profile": "asking"},
    "without a default, preset": {"profile": "asking", "preset": "current"},
    "broken": {"profile": "broken"},
    "odd environment": {"preset": "current", "env": {"NCCL_IB_TC": "x", "NCCL_IB_SL": "", "NCCL_ZZZZZZZZ": "1"}},
    "broken, preset": {"profile": "broken", "preset": "current"},
    "wrong world": {"preset": "current", "overrides": {"topology": {"nodes": 4, "tp": 3}, "env": {"B": "1"}}},
    "revisions and time-outs": {
        "preset": "current",
        "models_dir": "/srv/models",
        "overrides": {
            "model": {"revision": "v1"},
            "server_args": {
                "speculative_draft_model_revision": "v2",
                "enable_metrics": True,
                "watchdog_timeout": 60,
                "dist_timeout": 90,
            },
        },
    },
    "no digest": {"profile": "deepseek-v4-flash-vision"},
    "another machine": {"profile": "gemma-4-26b-a4b-it-b300"},
    "B300": {
        "profile": "gemma-4-26b-a4b-it-b300",
        "preset": "mtp",
        "platform": "b300",
        "fabric": {},
        "candidates": ["b"],
    },
}

# What other packages say.
OTHERS = ("known holes", "published runs", "the nearest ")
NEEDED = ("fallback", "fallback of a mistake", "two nodes of a preset for four", "staged by the owner", "B300")


def brief(findings: Iterable[Finding]) -> list[str]:
    """Return the findings; of those that other packages make only what they are about."""
    known = [
        replace(one, reason=f"{one.reason} {one.remedy}".strip())
        if one.rule.startswith("serving.")
        else Finding(one.severity, one.rule, one.key, None, "", "")
        for one in findings
    ]
    return said(known)


def test_plans_for_options_are_those_that_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    texts = {"local": LOCAL, "asking": GEMMA.replace("default_preset: current", 'default_preset: ""')}
    texts["broken"] = GEMMA.replace("tp: 4", "tp: four").replace("triton #", "flashinfer #")
    for name, text in texts.items():
        (tmp_path / f"{name}.yml").write_text(text.replace("name: gemma-4-31b-it", f"name: {name}"), encoding="utf-8")
    found = {}
    for name, changes in CASES.items():
        more = {
            key: changes[key]
            for key in ("fabric", "candidates", "taken", "readings", "loads", "held")
            if key in changes
        }
        own = {key: value for key, value in changes.items() if key not in more}
        options = role_values("serving_plan", profile_dirs=[str(tmp_path)], **own)
        options |= {"fabric": fabric(), "candidates": NODES, "taken": []} | more
        fact, findings, done = plan_serving(options, full=name == "fallback")
        head = (fact["ranks"] or [{}])[0]
        fewer = next(iter(fact.get("fallback", {}).get("plans", {}).values()), {"ranks": [{}]})["ranks"][0]
        done += [f"{key}: {rank.get(key)}" for rank in (head, fewer) for key in ("env", "argv", "networks")]
        kept = [f"{key}: {fact.get(key)}" for key in ("models", "revisions", "paths", "waived", "load", "swap_gib")]
        lines = [*done, *brief(findings), *kept, *([str(find_needs(options))] if name in NEEDED else [])]
        found[name] = [line.replace(str(tmp_path), "DIR") for line in lines if not line.startswith(OTHERS)]
        assert not fact["ranks"] or any(line.startswith("known holes of SGLang ") for line in done)
    usual = found["default"]
    found |= {name: [line for line in lines if line not in usual] for name, lines in found.items() if lines != usual}
    compare("serving_planned", found)
