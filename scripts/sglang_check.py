#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a command line of sglang.launch_server, without SGLang, torch or a GPU.

    scripts/sglang_check.py --sglang latest --arch Glm4MoeForCausalLM -- --model-path … --tp-size 4 --nnodes 4
    scripts/sglang_check.py --sglang latest --json -- python3 -m sglang.launch_server --model-path …

It checks the flags with the catalogue of the release's own parser and with the collection's rules, and prints them in
the release's spelling. For models that the collection knows, and for a config.json, it estimates the memory of one GPU
and shows the arithmetic. The exit status is 0 if no finding is an error, 1 if one is, and 2 if the script's arguments
are wrong.
"""

import argparse
import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, columns, directory, run

sys.path.insert(0, IMPORT_ROOT)

import _sglang_environment
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import sort_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import render_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, Report, check, clean_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.memory import Estimate, estimate
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import (
    DRAFT_FLAGS,
    GPUS,
    MODEL_FLAGS,
    Facts,
    Model,
    Setting,
    facts_for,
    find,
    find_draft,
    flag_value,
    load_models,
    read_facts,
)

SAYS = {"accepted": "accepts it", "refused": "refuses it: ", "unknown": "could not be asked: "}


def options() -> argparse.ArgumentParser:
    """Return the parser of the arguments before ``--``."""
    parser = argparse.ArgumentParser(
        description="Check a command line of sglang.launch_server for one SGLang version.",
        usage="%(prog)s --sglang VERSION [options] -- FLAGS…",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--sglang", required=True, metavar="VERSION", help="release that will run, such as 0.5.12.post1, or latest"
    )
    parser.add_argument("--arch", help="architecture of the model, as in its config.json; not needed for known models")
    parser.add_argument("--draft-arch", help="architecture of the draft model")
    parser.add_argument("--quantization", help="quantization of the checkpoint, such as modelopt_fp4")
    parser.add_argument("--max-context", type=int, help="context length that the checkpoint's config allows")
    parser.add_argument("--gpu", default="gb10", choices=sorted(GPUS), help="GPU of the nodes (default: gb10)")
    parser.add_argument("--gpus-per-node", type=int, default=1, metavar="N", help="GPUs per node (default: 1)")
    parser.add_argument(
        "--carries",
        action="append",
        default=[],
        metavar="WHAT",
        help="changes that the image has beyond its version, such as sglang#24436",
    )
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="environment of the server")
    parser.add_argument(
        "--dir",
        action="append",
        default=[],
        type=directory,
        help="directory with your own facts about models, rules, releases",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also run the release's own resolver and show every value that it changes (downloads torch once)",
    )
    parser.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="the model's config.json or its directory; default: --model-path if that is a directory of this machine",
    )
    parser.add_argument("--draft-config", type=Path, metavar="FILE", help="the same of the draft model")
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
    return parser


def show(report: Report, memory: Estimate | None) -> None:
    """Print a report for people: verdict, findings, memory, and the command line in the release's spelling."""
    errors = sum(finding.severity == "error" for finding in report.findings)
    verdict = "accepted" if report.accepted else f"refused, {errors} error(s)"
    print(f"SGLang {report.sglang}: {verdict}")
    if report.findings:
        print(render_findings(report.findings, columns()))
    print(*report.published, sep="\n", end="\n" if report.published else "")
    if memory is not None:
        print("memory of one GPU, estimated:", *memory.lines, sep="\n  ")
    print(shlex.join(["python3", "-m", "sglang.launch_server", *report.translated]))


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE pairs; raise ValueError for anything else."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"--env {pair}: write KEY=VALUE")
        found[key] = value
    return found


def judge_line(
    knowledge: Knowledge, models: Mapping[str, Model], sglang: str, argv: Sequence[str], given: Facts, setting: Setting
) -> tuple[Report, Estimate | None]:
    """Check one command line and estimate its memory if the model is known; raise ValueError for an invalid version."""
    facts = facts_for(models, flag_value(argv, *MODEL_FLAGS), flag_value(argv, *DRAFT_FLAGS), given)
    report = check(knowledge, sglang, argv, facts, setting)
    model = find(models, report.context["model_path"])
    if model is None:
        return report, None
    draft = find_draft(models, report.context["speculative_draft_model_path"])
    memory = estimate(model, report.context, draft, setting.gpu)
    return replace(report, findings=sort_findings([*report.findings, *memory.findings])), memory


def answer(asked: argparse.Namespace, argv: Sequence[str]) -> tuple[Report, Estimate | None]:
    """Check the given command line; raise ValueError for invalid arguments."""
    if asked.gpus_per_node < 1:
        raise ValueError("--gpus-per-node: a node has at least one GPU")
    given = Facts(asked.arch, asked.draft_arch, asked.quantization, None, asked.max_context)
    setting = Setting(
        gpu=asked.gpu, gpus_per_node=asked.gpus_per_node, carries=tuple(asked.carries), env=environment(asked.env)
    )
    models = dict(load_models(PROFILES / "models", *(directory / "models" for directory in asked.dir)))
    for name, file in config_files(asked, argv).values():
        known = find(models, name)
        models[name.lower()] = Model(**(asdict(known) if known else {}) | read_facts(file, name))
    knowledge = Knowledge.load(PROFILES, *asked.dir)
    return judge_line(knowledge, models, knowledge.history.release(asked.sglang), argv, given, setting)


def config_files(asked: argparse.Namespace, argv: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """Return name and config.json of the model (``config``) and of its draft (``draft_config``), if there are files."""
    found = {}
    for key, given, flags in (
        ("config", asked.model_config, MODEL_FLAGS),
        ("draft_config", asked.draft_config, DRAFT_FLAGS),
    ):
        name = flag_value(argv, *flags) or key
        staged = Path(name) if (Path(name) / "config.json").is_file() else None
        path = given or staged
        if path:
            found[key] = name, path / "config.json" if path.is_dir() else path
    return found


def ask_release(
    report: Report, argv: Sequence[str], configs: Mapping[str, tuple[str, Path]], gpu: str, count: int
) -> dict[str, Any]:
    """Return how the release's own resolver changes the arguments on these GPUs; raise ValueError if it can't run.

    ``configs`` are the result of `config_files`.
    """
    question: dict[str, Any] = {
        "argv": list(argv),
        "arch": report.context["arch"] or "LlamaForCausalLM",
        "draft_arch": report.context["draft_arch"],
    }
    try:
        for key, (_name, path) in configs.items():
            question[key] = json.loads(path.read_text(encoding="utf-8"))
        release = sglang_catalogue.unpack(report.judged_by)
        return _sglang_environment.ask(release, sglang_catalogue.CACHE, [question], gpu, count)[0]
    except (OSError, ValueError) as problem:
        raise ValueError(f"--model-config or --draft-config: {problem}") from problem
    except (sglang_catalogue.ReleaseError, _sglang_environment.SetupError) as problem:
        raise ValueError(f"--deep: {problem}") from problem


def show_release(deep: dict[str, Any]) -> None:
    """Print the release's own answer for people: every value that it changes, before and after."""
    print(f"the release itself: {SAYS[deep['verdict']]}{deep['message']}")
    for key, (given, becomes) in sorted(deep["changes"].items()):
        print(f"  {key}: {given} -> {textwrap.shorten(str(becomes), 160, placeholder=' …')}")


def main(words: Sequence[str] | None = None) -> int:
    """Check one command line; return the exit status."""
    everything = list(sys.argv[1:] if words is None else words)
    split = everything.index("--") if "--" in everything else len(everything)
    parser = options()
    asked = parser.parse_args(everything[:split])
    if split == len(everything):
        parser.error("give the server's flags after --")
    try:
        argv = clean_argv(everything[split + 1 :])
        report, memory = answer(asked, argv)
        files = config_files(asked, argv)
        deep = ask_release(report, argv, files, asked.gpu, asked.gpus_per_node) if asked.deep else None
    except ValueError as problem:
        result: dict[str, Any] = {
            "sglang": asked.sglang,
            "accepted": False,
            "error": str(problem),
            "findings": [],
            "translated": [],
        }
        print(json.dumps(result) if asked.json else problem, file=sys.stdout if asked.json else sys.stderr)
        return 2
    if asked.json:
        more = {"memory": memory.as_dict() if memory else None} | ({"deep": deep} if deep else {})
        print(json.dumps(report.as_dict() | more, indent=2, default=str))
    else:
        show(report, memory)
        if deep:
            show_release(deep)
    return 0 if report.accepted and (deep is None or deep["verdict"] != "refused") else 1


if __name__ == "__main__":
    run(main)
