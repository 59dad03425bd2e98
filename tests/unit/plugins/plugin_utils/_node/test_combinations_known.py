# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import (
    FILE,
    Combination,
    Condition,
    find_known,
    find_matching,
    load_combinations,
    values_of,
)
from preflight_samples import GOOD

ROOT = Path(__file__).resolve().parents[5]
SCHEMA = json.loads((ROOT / "plugins/profiles/schema/combinations.schema.json").read_text(encoding="utf-8"))
HOST: dict[str, Any] = {**GOOD, "arguments": ["quiet"], "installs": ["bash"]}
IMAGE: dict[str, Any] = {"platform": "gb10", "nodes": 2, "image": "sglang:x", "nccl": "2.30.7", "door": True}
IMAGE |= {"sglang": "SGLang 0.5.23", "release": "0.5.23", "flags": ["--tp-size"], "env": ["A"], "pinned": True}
ANSWERS: dict[str, Any] = {
    "args": dict.fromkeys(("context_length", "speculative_algorithm", "moe_runner_backend", "kv_cache_dtype"), "x")
    | dict.fromkeys(("quantization", "fp4_gemm_backend", "max_running_requests", "tool_call_parser"), "x")
    | dict.fromkeys(("reasoning_parser", "cuda_graph_backend_decode", "disable_cuda_graph"), "x")
    | {"disable_flashinfer_autotune": True},
    "release": "0.5.20",
    "models": ["org/model"],
    "nodes": 2,
    "wrong": ["one"],
}
HELD = {"cma_kib": 0, "cma_free_kib": 9_751_756}
OFF = {"arguments": ["quiet", "kho=off"]}
FLASH = {"models": ["RadixArk/Qwen3.8-Flash-Next-NVFP4"], "args": {"speculative_algorithm": "NEXTN"}}


def args(**given: Any) -> dict[str, Any]:
    return {"args": given}


KHO = {"kernel": "7.0.0-1019-nvidia", "cma_kib": 0, "cma_free_kib": 0}
UNREAD = {"kernel": "6.17.0-1014-nvidia", "cma_kib": 0, "cma_free_kib": None}
BACKUP = {"flags": ["--enable-elastic-expert-backup"]}
FP4, EAGER = args(quantization="modelopt_fp4"), args(quantization="modelopt_fp4", disable_cuda_graph=True)
# entry, facts that it matches, and similar facts that it does not match
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("preflight.kernel.kho_memory", {"kernel": "7.0.0-1019-nvidia", **HELD}, {"cma_kib": 0, "cma_free_kib": 0}),
    # The cause decides, and not the name of a release.
    ("preflight.kernel.kho_memory", {"kernel": "8.1.0-5-generic", **HELD}, {"cma_free_kib": 65536}),
    ("preflight.kernel.kho_argument", UNREAD | {"kernel": "7.0.0-31-generic"}, UNREAD),
    ("preflight.kernel.kho_argument", KHO, KHO | OFF),
    ("preflight.kernel.kho_off", KHO | OFF, KHO | HELD | OFF),
    ("preflight.kernel.kho_rate", {"kernel": "6.17.0-1032-nvidia", **OFF}, {"kernel": "6.18.0-1-nvidia", **OFF}),
    ("preflight.gpu.proprietary", {"gpu_module": "proprietary", "gpus": []}, {"gpu_module": "proprietary"}),
    ("preflight.gpu.none", {"gpus": None}, {"gpus": None, "gpu_driver": None}),
    ("preflight.gpu.none", {"gpus": [], "gpu_module": None}, {"gpus": [], "gpu_module": "proprietary"}),
    ("serving.nccl.arm", {"nccl": "2.28.9"}, {"nccl": "2.29.3"}),
    ("serving.nccl.arm", {"nccl": "2.9.1"}, {"nccl": "2.28.9", "nodes": 1}),
    ("serving.nccl.race", {}, {"platform": "b300"}),
    ("serving.hole.unpickler", {"release": "0.5.20"}, {"release": "0.5.21"}),
    ("serving.hole.unpickler", {"release": "0.5.13.1"}, {"release": None}),
    ("serving.hole.weights", {"release": "0.5.22"}, {"release": "0.5.23"}),
    ("serving.hole.logit_processor", {"flags": ["--enable-custom-logit-processor"]}, {"flags": []}),
    ("serving.hole.dumper", {"env": ["A", "DUMPER_SERVER_PORT"]}, {"env": ["DUMPER_ENABLE"]}),
    ("serving.hole.rerank", {"release": "0.5.10.1"}, {"release": "0.5.11"}),
    ("serving.hole.expert_backup", BACKUP | {"release": "0.5.14"}, BACKUP | {"release": "0.5.15"}),
    ("serving.hole.ranks", {"flags": ["--attn-dp-size"]}, {"flags": ["--enable-dp-attention"], "nodes": 1}),
    ("serving.hole.abort", {}, {"release": ""}),
    ("serving.hole.image_hashes", {"release": "0.5.13"}, {"release": "0.5.22"}),
    ("serving.hole.image_hashes", {"release": "0.5.21"}, {"release": "0.5.12"}),
    ("serving.hole.kv_events", {"flags": ["--kv-events-config"]}, {"flags": []}),
    ("serving.hole.media", {}, {"release": ""}),
    ("serving.hole.diffusion", {}, {"release": ""}),
    ("answers.known.flash_next_context", FLASH | {"wrong": ["context"]}, FLASH),
    ("answers.known.flash_next_graphs", FLASH, args(speculative_algorithm="NEXTN")),
    ("answers.graphs.eager", EAGER | {"release": "0.5.15"}, EAGER | {"release": "0.5.16"}),
    ("answers.parser.tools", {"wrong": ["tools"]}, {"wrong": ["one"]}),
    ("answers.parser.reasoning", {"wrong": ["reasoning"]}, {"wrong": ["one"]}),
    ("answers.kernels.autotune", FP4, args(**FP4["args"], disable_flashinfer_autotune=True)),
    ("answers.kernels.autotune", args(fp4_gemm_backend="flashinfer_cutlass"), args(fp4_gemm_backend="auto")),
    ("answers.batch.streams", {"wrong": ["streams"]}, {"wrong": ["one"]}),
    ("answers.cache.fp8", args(kv_cache_dtype="fp8_e4m3"), args(kv_cache_dtype="bf16")),
    ("answers.spec.draft", args(speculative_algorithm="EAGLE"), args(a="b")),
    ("answers.graphs.decode", args(a="b"), args(cuda_graph_backend_decode="disabled")),
    ("answers.graphs.decode", args(quantization="fp8"), args(quantization="modelopt_fp4") | {"release": "0.5.15"}),
]


FACTS = {"preflight": HOST, "serving": IMAGE, "answers": ANSWERS}


def matching(entry: str, changes: Mapping[str, Any]) -> list[str]:
    facts = FACTS[entry.partition(".")[0]] | changes
    return [found.id for found in find_matching(facts)]


@pytest.mark.parametrize(("entry", "facts", "near"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_an_entry_matches_its_cause(entry: str, facts: dict[str, Any], near: dict[str, Any]) -> None:
    assert entry in matching(entry, facts)
    assert entry not in matching(entry, near)


def test_a_good_host_has_no_entry_and_every_entry_has_a_case() -> None:
    assert find_matching(HOST) == []
    assert {case[0] for case in CASES} == {entry.id for entry in load_combinations()}


def test_the_file_follows_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(entries)] == []
    names = [entry["id"] for entry in entries]
    assert len(names) == len(set(names))
    for wrong in ({"severity": "fatal"}, {"sources": []}, {"when": [{"fact": "kernel"}]}, {"extra": 1}):
        assert list(validator.iter_errors([entries[0] | wrong]))


def named(conditions: list[Condition]) -> Iterator[str]:
    for condition in conditions:
        yield from named(condition.get("not", []))
        for each in condition.get("any", []):
            yield from named(each)
        yield from [condition["fact"]] if "fact" in condition else []
        yield from (wanted["fact"] for wanted in condition.values() if isinstance(wanted, dict))


def test_entries_name_facts_that_are_read() -> None:
    for entry in load_combinations():
        facts = FACTS[entry.id.partition(".")[0]]
        for name in {*named(list(entry.when)), *entry.shows}:
            assert values_of(facts, name), f"{entry.id} names {name}"


def test_a_closed_hole_makes_no_finding() -> None:
    """A hole that is open is a warning, which names the CVEs and a release."""

    def found(**facts: Any) -> dict[str, Any]:
        return {finding.rule: finding for finding in find_known("serving", IMAGE | facts, "profile x")}

    assert found(release="0.5.10") == {}
    left = found(release="0.5.10", door=False, pinned=False)
    assert set(left) == {f"serving.hole.{name}" for name in ("unpickler", "weights", "rerank")}
    assert {finding.severity for finding in left.values()} == {"warning"}
    assert all("0.5." in finding.remedy for finding in left.values())
    assert left["serving.hole.unpickler"].reason.startswith("CVE-2026-15969, CVE-2026-86793: ")


NEW = """\
- id: preflight.gpu.toolkit_example
  severity: warning
  about: container toolkit
  shows: [packages.nvidia-container-toolkit, pfs.firmware]
  when:
    - {fact: packages.nvidia-container-toolkit, at_least: "1.18", below: "1.18.1"}
    - any:
        - [{fact: pfs.firmware, starts: "28.45."}]
        - [{fact: modules, is: nouveau}]
    - {fact: pfs.pcie_width, at_most: 4}
  happens: an example of an entry that nobody wrote code for
  remedy: Install another release.
  evidence: single
  sources: [somebody#1]
"""


def test_a_new_entry_needs_no_code(tmp_path: Path) -> None:
    file = tmp_path / "combinations.yml"
    file.write_text(NEW, encoding="utf-8")
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(NEW))) == []
    entries = load_combinations(file)
    (finding,) = find_known("preflight", HOST, "spark1", entries)
    assert (finding.rule, finding.severity, finding.where) == ("preflight.gpu.toolkit_example", "warning", "spark1")
    assert finding.value == "1.18.0-1, 28.45.4028 28.45.4028"
    assert finding.reason.endswith("wrote code for (one report, not confirmed)")
    assert finding.source == "somebody#1"
    assert not list(find_known("serving", HOST, "spark1", entries))
    assert not find_matching(HOST | {"packages": {"nvidia-container-toolkit": "1.18.1-1"}}, entries)
    assert find_matching(HOST | {"pfs": [{"pcie_width": 4}], "modules": ["nouveau"]}, entries)


ODD: list[Any] = [None, "", "x", "9" * 100_000, 7, -1, 10**400, float("nan"), float("inf"), True, [], {}, [[]]]
ODD += [[None], {"x": []}, {"fact": "kernel"}, "\x1b[2J{{ 1 }}", b"x"]


@pytest.mark.parametrize("value", ODD, ids=[str(number) for number in range(len(ODD))])
def test_a_fact_may_have_any_form(value: Any) -> None:
    for name in [*GOOD, "arguments"]:
        for finding in find_known("preflight", HOST | {name: value}, "spark1"):
            assert len(str(finding)) < 2500
    assert [*find_known("preflight", {}, "spark1"), *find_known("serving", {}, "")] == []


@pytest.mark.parametrize(
    ("value", "condition", "holds"),
    [
        ("6.9.0", {"below": "6.17"}, True),
        ("7.0.0-31-generic", {"at_least": "7.0.0-31"}, True),
        ("7.0.0-31-generic", {"above": "7.0.0-1019"}, False),
        (9, {"below": 10}, True),
        ("9", {"below": 10}, False),
        (True, {"at_least": 1}, False),
        (True, {"is": 1}, False),
        (1, {"is_not": [2, 3]}, True),
        (None, {"is_not": [2, 3]}, False),
        ("no number", {"below": "1"}, False),
    ],
)
def test_versions_and_numbers_are_compared_as_such(value: Any, condition: Any, holds: bool) -> None:
    raw = yaml.safe_load(NEW)[0] | {"when": [{"fact": "x", **condition}]}
    assert bool(find_matching({"x": value}, [Combination(**raw)])) is holds
