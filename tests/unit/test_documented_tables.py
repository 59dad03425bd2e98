# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare tables, lists and examples of the pages, which people write, with what the code has."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import SHOWN_ENVIRONMENT
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import Layer
from ansible_collections.gb10.cluster.plugins.module_utils._kube import labels
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Facts, Setting
from fabric_samples import fabric
from serving_samples import plan

ROOT = Path(__file__).resolve().parents[2]
FAULTS = (ROOT / "lab/gb10lab/faults.py").read_text(encoding="utf-8")
PODS = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("plugins/module_utils/_pod/*.py"))


def data(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def first_column(path: str, heading: str) -> set[str]:
    """Return the names in backquotes in the first column of the table whose heading begins so."""
    rows = text(path).partition(f"| {heading}")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split("|")[1].partition(" (")[0])}


def fields(rules: Iterable[Mapping[str, Any]]) -> set[str]:
    return {name for rule in rules for name in rule}


SCHEMA = json.loads(text("plugins/profiles/schema/profile.schema.json"))["properties"]
CONDITION = json.loads(text("plugins/profiles/schema/combinations.schema.json"))["$defs"]["condition"]["oneOf"]
CASES = [
    ("docs/profiles.md", "key", set(SCHEMA)),
    ("docs/profiles.md", "field", fields(json.loads(text("plugins/profiles/rules.json"))["rules"])),
    ("docs/combinations.md", "operator", fields(one["properties"] for one in CONDITION) - {"fact", "not", "any"}),
    (
        "roles/fabric_discover/README.md",
        "Finding",
        {
            re.split("[./]", name)[1]
            for name in data("plugins/plugin_utils/_fabric/rules.yml")
            if name.startswith("cabl")
        },
    ),
    ("roles/fabric_check/README.md", "Layer", set(get_args(Layer)) - {""}),
    ("lab/README.md", "`labctl fault HOST", {*re.findall(r'^(?:    |ONE_DOMAIN = \()"([\w-]+)"', FAULTS, re.M)}),
    (
        "docs/transport.md",
        "reason",
        {*re.findall(r'Condition\(\s*False,\s*"(\w+)"', text("plugins/module_utils/_pod/gate.py"))}
        | {"Failed", "WrongTransport"},
    ),
]


@pytest.mark.parametrize(("path", "heading", "known"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_a_table_has_exactly_the_names_of_the_code(path: str, heading: str, known: set[str]) -> None:
    assert first_column(path, heading) == known


def test_the_page_of_the_transport_has_every_metric_of_the_sidecar() -> None:
    helped = PODS.partition("_HELP = {")[2].partition("\n}\n")[0]
    named = {f"gb10_transport_{name}" for name in re.findall(r'^    "(\w+)": \(', helped, flags=re.MULTILINE)}
    named |= set(re.findall(r'"(gb10_(?:memory|health|load|answers)_\w+)"', PODS))
    assert named - set(re.findall(r"`(gb10_\w+)`", text("docs/transport.md"))) == set()
    assert len(named) > 15


def test_the_page_of_the_bundle_names_every_variable_whose_value_is_kept() -> None:
    page = text("roles/support_bundle/README.md").lower()
    for start in SHOWN_ENVIRONMENT:
        word = {"torch_": "pytorch"}.get(start.lower(), start.lower().rstrip("_"))
        assert word in page, start


def test_the_page_of_profiles_names_all_that_a_condition_can_use() -> None:
    knowledge = Knowledge.load(ROOT / "plugins/profiles")
    newest = knowledge.history.catalogues[-1].version
    context = check(knowledge, str(newest), [], Facts(), Setting()).context
    flags = knowledge.history.defaults[newest]
    listed = text("docs/profiles.md").partition("- the model: ")[2].partition("\n\n")[0]
    # The group moe is replaced by what is known of the model.
    others = set(context) - set(flags) - set(knowledge.rules.groups) | {"moe"}
    assert set(re.findall(r"`(\w+)`", listed)) == others


def test_the_page_of_profiles_shows_what_is_printed_of_published_launches() -> None:
    knowledge = Knowledge.load(ROOT / "plugins/profiles")
    argv = ["--model-path", "x/y", "--moe-runner-backend", "triton", "--attention-backend", "flashinfer"]
    facts = Facts("NemotronHForCausalLM", quantization="modelopt_mixed")
    printed = check(knowledge, "0.5.12", argv, facts, Setting()).published
    shown = text("docs/profiles.md").partition("```text\n")[2].splitlines()[:2]
    assert all(said.startswith(line.partition("…")[0]) for line, said in zip(shown, printed, strict=True))


def test_the_page_of_the_monitoring_names_the_images_that_run() -> None:
    pinned = data("roles/monitoring/vars/main.yml")["__monitoring_pinned"].values()
    versions = [re.sub(r"^(.+?):v?([\d.-]+)@.+", r"`\1` \2", image) for image in pinned]
    assert [one for one in versions if one not in text("roles/monitoring/README.md")] == []


PAGE = Path(__file__).resolve().parents[2] / "docs" / "interfaces.md"


def test_the_documented_queries_of_plans_give_what_their_names_say() -> None:
    (block,) = re.findall(r"```yaml\n(- name: Show which.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    serving, planned = plan().as_dict(), plan_fabric(fabric(4))[0].as_dict()
    facts = {"ansible_facts": {"gb10_serving_plan": serving, "gb10_fabric_plan": planned}}
    templar = Templar(loader=DataLoader(), variables=facts)
    addresses, netmask = (
        templar.template(trust_as_template(task["ansible.builtin.debug"]["msg"])) for task in yaml.safe_load(block)
    )
    assert addresses == [rank["networks"][0]["ips"][0] for rank in serving["ranks"]]
    assert netmask == "255.255.255.0"


@pytest.mark.parametrize(
    ("title", "made"),
    [
        ("Fabric plan", {**plan_fabric(fabric(4))[0].as_dict(), "findings": []}),
        ("Serving plan", {**plan().as_dict(), "findings": [], "fallback": {}}),
    ],
)
def test_the_page_has_the_keys_of_a_plan(title: str, made: dict[str, Any]) -> None:
    block = re.search(rf"## {title} .*?```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert block
    page = yaml.safe_load(block[1])
    assert set(page) == set(made)
    for name in ("ranks", "networks", "rails"):
        if name in made:
            assert set(page[name][0]) == set(made[name][0]), name
    for host in made.get("hosts", {}).values():
        for name in ("pfs", "vfs"):
            assert set(page["hosts"]["spark1"][name][0]) == set(host[name][0]), name
    for rank in made.get("ranks", ()):
        assert set(page["ranks"][0]["networks"][0]) == set(rank["networks"][0])


def test_the_page_names_every_condition_of_a_pod() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for condition in (labels.TRANSPORT, labels.MEMORY, labels.LOAD, labels.HEALTH, labels.ANSWERS):
        assert f"`{condition}`" in text


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "fabric.md"


def test_the_example_of_a_mac_is_right() -> None:
    assert vf_mac("gb10", "rail1", 3, 2) in GUIDE.read_text(encoding="utf-8")
