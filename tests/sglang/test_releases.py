# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the shipped catalogues, the parser's verdicts and the rendered profiles with every known release."""

import ast
import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import find_matching
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.argv import parse_flags
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import Catalogue, load_history
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, merge, topology_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import find_profiles, load_profile
from sglang_profiles import matrix

ROOT = Path(__file__).resolve().parents[2]
HISTORY = load_history(ROOT / "plugins" / "profiles" / "catalogue")
RELEASES = [str(catalogue.version) for catalogue in HISTORY.catalogues]

OWN_OPINION = {"argparse.abbrev"}
"""Rules for words that the parser accepts and this collection refuses."""

WORDS = (
    "4", "-1", "-0.5", "x", '{"a": 1}', '{"decode": {"max_bs": 8}}', "true", "auto", "--", "-", "-x", "1e5", "-1e5",
    "a b", "-a b", "disabled", "16k", "5Ki", "[1]", "None", "", "--tp", "3.5", "tc_piecewise", "-.5", "1_000", "nan",
)  # fmt: skip


def ask_parser(version: str, lines: list[list[str]]) -> list[dict[str, Any]]:
    """Return how the release's own parser judges command lines."""
    directory = sglang_catalogue.unpack(version)
    printed = sglang_catalogue.run_release(directory, "parse", "".join(json.dumps(line) + "\n" for line in lines))
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize("version", RELEASES)
def test_the_shipped_catalogue_equals_that_of_the_release(version: str) -> None:
    shipped = (ROOT / "plugins" / "profiles" / "catalogue" / f"{version}.json").read_text(encoding="utf-8")
    assert sglang_catalogue.catalogue(version) == shipped


def random_line(catalogue: Catalogue, spellings: list[str], source: random.Random) -> list[str]:
    """Return a command line with right and wrong flags, values and abbreviations."""
    line = ["--model-path", "m"] if source.random() < 0.9 else []
    for _unused in range(source.choice([1, 1, 2, 3])):
        option = source.choice(list(catalogue.options) if source.random() < 0.75 else spellings)
        if source.random() > 0.95:
            option = option[: source.randint(3, len(option))]
        flag = catalogue.options.get(option)
        word = source.choice(WORDS)
        if flag is not None and flag.choices and source.random() < 0.6:
            word = str(source.choice(flag.choices))
        if flag is not None and flag.is_switch and source.random() < 0.9:
            line.append(option)
        elif source.random() < 0.2:
            line.append(f"{option}={word}")
        else:
            line += [option, *[word, source.choice(WORDS)][: source.choice([0, 1, 1, 1, 1, 2])]]
    return line


@pytest.mark.parametrize("version", RELEASES)
def test_the_verdict_agrees_with_the_parsers(version: str) -> None:
    catalogue = HISTORY.nearest(Version.parse(version))[0]
    spellings = [option for other in HISTORY.catalogues for option in other.options]
    source = random.Random(version)
    drawn = [random_line(catalogue, spellings, source) for _unused in range(600)]
    # a file given with --config may have the required flags, which the bare parser does not read
    lines = [line for line in drawn if not any(word.startswith("--conf") for word in line)]
    accepted = 0
    for line, answer in zip(lines, ask_parser(version, lines), strict=True):
        errors = [
            str(finding)
            for finding in parse_flags(catalogue, HISTORY, line).findings
            if finding.severity == "error" and finding.rule not in OWN_OPINION and "reads as" not in finding.reason
        ]
        assert answer["ok"] == (not errors), (line, answer["message"], errors)
        accepted += answer["ok"]
    assert 120 < accepted < 480, "a sample needs accepted and refused lines"


@pytest.mark.parametrize("version", RELEASES)
def test_the_command_lines_of_profiles_are_accepted_by_the_parser(version: str) -> None:
    profiles = {name: load_profile(name) for name in find_profiles()}
    cells = [cell for cell in matrix(profiles.values(), Library.load(), [version]) if cell.state != "refused"]
    lines = []
    for cell in cells:
        merged = merge(profiles[cell.profile], cell.preset, None)
        sizes = topology_argv({"nodes": 1, "tp": 1, "pp": 1, "ep": 1} | merged["topology"])
        lines.append(["--model-path", merged["model"]["repo"], *cell.argv, *sizes])
    assert len(cells) > 15
    for cell, answer in zip(cells, ask_parser(version, lines), strict=True):
        assert answer["ok"], (cell.profile, cell.preset, answer["message"])


def function(version: str, name: str) -> str:
    """Return the source of a function from the first file below ``sglang/srt`` that defines it, or an empty string."""
    for path in sorted((sglang_catalogue.unpack(version) / "sglang" / "srt").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"def {name}(" in text:
            found = [node for node in ast.walk(ast.parse(text)) if getattr(node, "name", "") == name]
            return "\n\n".join(ast.get_source_segment(text, node) or "" for node in found)
    return ""


def http_server(version: str) -> ast.Module:
    path = sglang_catalogue.unpack(version) / "sglang/srt/entrypoints/http_server.py"
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", RELEASES)
def test_health_generate_is_green_only_after_a_token(version: str) -> None:
    """The supervisor asks it: a variable makes /health green at once. Another one, for diagnosis, does that to both."""
    (asked,) = [one for one in ast.walk(http_server(version)) if getattr(one, "name", "") == "health_generate"]
    assert isinstance(asked, ast.AsyncFunctionDef)
    green = [one for one in asked.body if "status_code=200" in ast.unparse(one)]
    at_once = [ast.unparse(one.test) for one in green if isinstance(one, ast.If)]
    at_once = [test for test in at_once if "SGLANG_DIAG_BYPASS_HEALTH_GENERATE" not in test]
    assert at_once == ["not envs.SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION.get() and request.url.path == '/health'"]
    later = [ast.unparse(one) for one in green if not isinstance(one, ast.If)]
    assert len(later) == 1
    assert "last_receive_tstamp > tic" in later[0]


def routes(version: str) -> dict[str, bool]:
    """Return the paths of a release's HTTP server, and of each whether the release marks it as an administrator's."""
    found = {}
    for node in ast.walk(http_server(version)):
        calls = [call for call in getattr(node, "decorator_list", []) if isinstance(call, ast.Call)]
        words = [call.args[0] for call in calls if ast.unparse(call.func).startswith("app.") and call.args]
        paths = [word.value for word in words if isinstance(word, ast.Constant)]
        marked = any("AuthLevel.ADMIN" in ast.unparse(call) for call in calls)
        found |= dict.fromkeys(paths, marked)
    return found


@pytest.mark.parametrize("version", RELEASES)
def test_the_door_of_a_server_is_closed_to_what_the_release_calls_administration(version: str) -> None:
    door = runpy.run_path(str(ROOT / "roles/sglang/files/front_door.py"))
    marked = routes(version)
    assert sum(marked.values()) > 30
    admitted = {path for path in marked if door["admits"](path, "10.0.0.9", "10.0.0.2", frozenset({"10.0.0.2"}))}
    assert {path for path in admitted if marked[path]} == set()
    # Routes that a release forgot to mark, and those that no client needs. A new route belongs to one of both sides.
    closed = {"/", "/get_hicache_l3_cache_layout", "/get_weight_version", "/load_lora_adapter_from_tensors"}
    assert {path for path in marked if not marked[path]} - admitted <= closed | {"/set_trace_level", "/weight_version"}


HOLES = {
    "serving.hole.unpickler": lambda srt: "ALLOWED_GLOBALS" not in read(srt, "utils/common.py"),
    "serving.hole.weights": lambda srt: "weights_only=False" in read(srt, "model_loader/weight_utils.py"),
    "serving.hole.logit_processor": lambda srt: "dill.loads(" in read(srt, "sampling/custom_logit_processor.py"),
    "serving.hole.dumper": lambda srt: "eval(filter_expr" in read(srt, "debug_utils/dumper.py"),
    "serving.hole.rerank": lambda srt: " jinja2.Environment(" in read(srt, "entrypoints/openai/serving_rerank.py"),
    "serving.hole.expert_backup": lambda srt: "recv_pyobj" in read(srt, "elastic_ep/expert_backup_manager.py"),
}
"""What the sources of a release have if it has a hole. 0.5.9 has neither the dumper's filter nor the backup."""


def read(srt: Path, name: str) -> str:
    path = srt / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_has_the_holes_that_the_combinations_say(version: str) -> None:
    srt = sglang_catalogue.unpack(version) / "sglang" / "srt"
    flags = ["--enable-custom-logit-processor", "--enable-elastic-expert-backup"]
    facts = {"release": version, "flags": flags, "env": ["DUMPER_SERVER_PORT"], "nodes": 1}
    told = {entry.id for entry in find_matching(facts)} & set(HOLES)
    absent = {"serving.hole.dumper", "serving.hole.expert_backup"} if version == "0.5.9" else set()
    assert told - absent == {name for name, has in HOLES.items() if has(srt)}


@pytest.mark.parametrize("version", [version for version in RELEASES if Version.parse(version).within("0.5.12", None)])
def test_a_draft_of_mistral_is_read_by_its_name(version: str) -> None:
    assert "get_config(" in (reader := function(version, "_resolve_speculative_algorithm_alias"))
    assert "AutoConfig" not in reader
    scope: dict[str, Any] = {}
    exec(function(version, "is_mistral_model"), scope)
    assert scope["is_mistral_model"]("/models/Mistral-Medium-Eagle")
    assert not scope["is_mistral_model"]("/models/draft")


@pytest.mark.parametrize("version", [version for version in RELEASES if Version.parse(version).within("0.5.15", None)])
def test_0_5_15_is_the_last_release_with_triton_and_cutlass_for_nvfp4_experts(version: str) -> None:
    path = sglang_catalogue.unpack(version) / "sglang/srt/layers/quantization/modelopt_quant.py"
    text = path.read_text(encoding="utf-8")
    gone = [
        "moe_runner_backend=cutlass is not supported for NVFP4 MoE" in text,
        "Unsupported moe_runner_backend for NVFP4 MoE" in text,
        "cutlass_moe_fp4(" not in text,
    ]
    assert gone == [Version.parse(version).within("0.5.16", None)] * 3
