# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what the collection says about inputs from public reports of owners with what it should say.

``fixtures/field`` has the inputs. A JSON file has the facts of hosts that differ from those of a sound host.
"""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import find_matching
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import check_hosts
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import find_needs, plan_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import read_command
from nccl_lines import judge
from preflight_samples import GOOD
from role_samples import role_values

ROOT = Path(__file__).resolve().parents[2]
FIELD = Path(__file__).parent / "fixtures" / "field"
PFS = tuple(pf["name"] for pf in GOOD["pfs"])
RAILS = {PFS[0]: "rail0", PFS[1]: "rail1"}


def facts_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a sound host with those of a case; a case from before CmaFree was read does not tell it."""
    given = case.get("facts", {})
    facts = copy.deepcopy(GOOD) | ({"cma_free_kib": None} if "cma_kib" in given else {})
    for port in facts["pfs"]:
        port.update(case.get("pf", {}))
    # A driver of another kind is not told by its version.
    return facts | ({"gpu_module": None} if "gpu_driver" in given else {}) | given


def hosts_of(name: str, **more: Any) -> list[Host]:
    hosts = json.loads((FIELD / f"{name}.json").read_text(encoding="utf-8"))["hosts"]
    shaped = {host: shape_facts(facts_of(case) | more) for host, case in hosts.items()}
    return [Host(host, facts, pfs=PFS, rails=RAILS, misread=bad) for host, (facts, bad) in shaped.items()]


def told(findings: list[Finding]) -> dict[str, str]:
    """Return ``{rule: severity and hosts}``."""
    found: dict[str, list[str]] = {}
    for one in findings:
        found.setdefault(f"{one.rule} {one.severity}", []).append(one.where)
    return {rule: " ".join(sorted(filter(None, set(hosts)))) for rule, hosts in found.items()}


def names(ending: str) -> list[str]:
    return sorted(path.stem for path in FIELD.glob(f"*.{ending}"))


EXPECTED = yaml.safe_load((FIELD / "expected.yml").read_text(encoding="utf-8"))


def test_every_case_has_what_it_should_say() -> None:
    assert sorted(EXPECTED) == sorted([*names("json"), *names("log")])


@pytest.mark.parametrize("name", names("json"))
def test_facts_of_hosts(name: str) -> None:
    wanted = EXPECTED[name]
    assert told(check_hosts(hosts_of(name), {})) == wanted["now"]
    if "with" in wanted:
        hosts = hosts_of(name, **wanted["with"])
        assert told(check_hosts(hosts, {})) == wanted["then"]
        sound = {entry.id for host in hosts for entry in find_matching(host.readable) if entry.severity == "sound"}
        assert sound == ({wanted["sound"]} if "sound" in wanted else set())


@pytest.mark.parametrize("name", names("log"))
def test_logs_of_nccl(name: str) -> None:
    (cause,) = judge((FIELD / f"{name}.log").read_text(encoding="utf-8")).causes
    assert cause["id"] == EXPECTED[name]["cause"]
    assert EXPECTED[name]["remedy"] in cause["remedy"]


def test_a_start_script_is_carried_over_without_what_the_plan_chooses() -> None:
    source = read_command((FIELD / "c22-vision-cookbook.sh").read_text(encoding="utf-8"))
    assert source.image == "lmsysorg/sglang:dev-v4f-2dgx-v2"
    assert source.argv[:2] == ["--model-path", "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"]
    assert source.env == {"SGLANG_SM120_FLASHMLA_BACKEND": "b12x", "SGLANG_B12X_MAX_TOKENS": "8192"}
    assert {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "docker"} <= {one.key for one in source.findings}


def test_a_line_whose_text_goes_wrong_is_read_whole() -> None:
    # The gate of answers, and not a rule about flags, finds wrong text (sglang#36537).
    lines = (FIELD / "c23a-sglang-line.txt").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line and not line.startswith("#")]
    source = read_command(f"python3 -m sglang.launch_server {line.partition(' -- ')[2]}")
    assert source.argv[-2:] == ["--kv-cache-dtype", "fp8_e4m3"]
    assert not [one for one in source.findings if one.severity == "error"]


def test_a_ring_cabled_from_like_to_like_cages_is_planned() -> None:
    values = yaml.safe_load((FIELD / "inv-ring4/group_vars/gb10_cluster.yml").read_text(encoding="utf-8"))
    groups = yaml.safe_load((FIELD / "inv-ring4/hosts.yml").read_text(encoding="utf-8"))["gb10_cluster"]["children"]
    hosts = groups["gb10_nodes"]["hosts"]
    plan, findings = plan_fabric({host: {**values, **own} for host, own in hosts.items()})
    assert (plan.topology, len(plan.hosts), findings) == ("ring", 4, [])
    options = role_values("serving_plan", profile="gemma-4-31b-it", preset="throughput", models_dir="/srv/models")
    fabric = {**plan.as_dict(), "findings": []}
    found = plan_serving({**options, "fabric": fabric, "candidates": list(hosts), "taken": []})[1]
    # The image of this preset has an older NCCL than the choice by subnet needs; the cabling itself is served.
    assert {one.rule: one.severity for one in found if one.rule.startswith("serving.cable")} == {
        "serving.cable.nccl": "error",
        "serving.cable.merged": "warning",
    }


def test_swap_that_a_profile_asks_for_is_asked_for_and_not_to_be_removed() -> None:
    # Profile deepseek-v4-flash-vision asks for 48 GiB while it loads (sglang#37931).
    options = role_values("serving_plan", profile="deepseek-v4-flash-vision", preset="dspark")
    needs = find_needs(options | {"candidates": ["spark1", "spark2"]})
    hosts = [replace(host, needs=needs) for host in hosts_of("c15-swap48")]
    assert told(check_hosts(hosts, {})) == {
        "preflight.memory.swap_missing warning": "spark2",
        "preflight.memory.swap_differs info": "",
    }


def test_the_page_has_the_space_that_the_example_of_two_sparks_needs() -> None:
    """The draft that is built into this checkpoint is on the disk too, although the preset does not use it."""
    values = yaml.safe_load((ROOT / "inventory/2x-gb10-direct/group_vars/gb10_cluster.yml").read_text(encoding="utf-8"))
    given = {name: values[f"serving_plan_{name}"] for name in ("profile", "preset")}
    options = role_values("serving_plan", **given, models_dir="/srv/models")
    needs = find_needs(options | {"candidates": ["spark1", "spark2"]})
    assert needs is not None
    (weights,), (image,) = needs.models.values(), needs.images.values()
    page = (ROOT / "docs/prepare.md").read_text(encoding="utf-8")
    said = f"{weights:.0f} GiB of weights, {image:.0f} for the image and 48: {weights + image + 48:.0f} GiB"
    assert said in " ".join(page.split())
