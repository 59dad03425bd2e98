# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the pages of messages, and the search of the site, have every message with which a task fails."""

import re
import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import troubleshooting
import yaml
from _generated import with_parts
from _refusals import Message, message, refusals, texts
from docutils.core import publish_doctree
from myst_parser.docutils_ import Parser
from script_runs import called

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("troubleshooting", "launch-rules")
FILES = [path for top in ("roles", "playbooks") for path in sorted((ROOT / top).rglob("*.yml"))]
FILES = [path for path in FILES if "collections" not in path.parts]
FAILS = re.compile(r"^ +(?:- )?(?:fail_msg:|ansible\.builtin\.fail:)", re.MULTILINE)
LEFT_OUT = "This run leaves out {{ __lost | join(', ') }}; nothing was changed. Run it with {all: hosts}. [run.part]"


@cache
def page_of(name: str) -> str:
    """Return a page of messages as the site has it."""
    path = ROOT / "docs" / f"{name}.md"
    return with_parts(path.read_text(encoding="utf-8"), troubleshooting.site_pages()[path], str(path))


@cache
def found(page: str) -> set[str]:
    """Return the names of the messages to which the search of the site leads on a page."""
    objects: dict[tuple[str, str], str] = {}
    standard = SimpleNamespace(objects=objects, note_object=lambda *of, location: objects.update({of[:2]: of[2]}))
    env = SimpleNamespace(docname=f"docs/{page}", domains=SimpleNamespace(standard_domain=standard))
    tree = publish_doctree(page_of(page), parser=Parser(), settings_overrides={"report_level": 5})
    runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))["name_rows"](SimpleNamespace(env=env), tree)
    return {name for _kind, name in objects}


@pytest.fixture(autouse=True)
def repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GB10_REPOSITORY", str(ROOT))


def test_a_message_is_split_behind_its_first_sentence_and_shows_the_names_of_its_values() -> None:
    expected = ("run.part", "error", "This run leaves out {lost}; nothing was changed", "Run it with {{all: hosts}}.")
    assert message(LEFT_OUT) == Message(*expected)
    one = message("{{ __plan.service['x'].name }} has {{ found.list[kind] }}. Stop it. [run.held]")
    assert one and one.reason == "{name} has {list}"


@pytest.mark.parametrize("text", ["{{ report.msg.split('\n') }}", "Pods of {{ name }} can't start.\n{{ found }}"])
def test_a_message_that_ends_with_findings_has_no_row_of_its_own(text: str) -> None:
    assert message(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "It is missing. Add it.",
        "It is missing. [run.part]",
        "It is {{ 'missing' if lost else 'there' }}. Add it. [run.part]",
        "It is {{ state if lost else 'there' }}. Add it. [run.part]",
    ],
)
def test_a_message_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="without conditions"):
        message(text)


def test_an_assertion_without_a_message_is_refused() -> None:
    with pytest.raises(KeyError):
        list(texts([{"block": [{"ansible.builtin.assert": {"that": "x"}}]}]))


def test_every_message_of_a_task_is_on_a_page_and_found_by_the_search() -> None:
    worded = [each for path in FILES for each in refusals(path)]
    findings = [
        text
        for path in FILES
        if FAILS.search(path.read_text(encoding="utf-8"))
        for text in texts(yaml.safe_load(path.read_text(encoding="utf-8")))
        if message(text) is None
    ]
    assert len(worded) + len(findings) == sum(len(FAILS.findall(path.read_text(encoding="utf-8"))) for path in FILES)
    names = [each.rule for each in worded]
    assert len(names) > 30
    assert len(set(names)) == len(names)
    assert set(names) <= found(PAGES[0]) | found(PAGES[1])


@pytest.mark.parametrize("page", PAGES)
def test_every_message_of_a_table_is_found_by_the_search(page: str) -> None:
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", page_of(page), re.MULTILINE)
    cells = [cell for cell in rows if "…" not in cell]
    assert {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} == found(page)


def test_the_first_table_leads_to_every_kind_of_message() -> None:
    kinds = {
        name.partition(".")[0] for name in found("troubleshooting") if re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", name)
    }
    index = page_of("troubleshooting").partition("## ")[0]
    assert {kind for kind in kinds if f"`{kind}." not in index} == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("preflight.link.slow", ["preflight.link.slow"]),
        ("warning: spark2: enp1s0f0np0 = 100: a degraded NIC. [preflight.link.slow]", ["preflight.link.slow"]),
        ("update.", None),
        ("came up degraded NIC", []),
        # Not the "room" of other messages.
        ("OOM", []),
        ("a NIC that came up degraded", ["preflight.link.slow"]),
        (
            "NCCL WARN Call to ibv_modify_qp failed with 61 No data available",
            ["qp_gid_index", "qp_failed", "verbs_call"],
        ),
        ("RuntimeError: cuda out of memory. Tried to allocate 2 GiB", ["CUDA out of memory"]),
        # Only some of the driver's faults are those of the GPU.
        ("NVRM: Xid (PCI:000f:01:00): 13, pid=7, Graphics SM Warp Exception", ["NVRM: Xid"]),
        ("NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.", ["NVRM: Xid", "GPU has fallen off the bus"]),
        ("attn.fa3_sm12x", ["attn.fa3_sm12x", "attn.fa3_sm12x"]),
        ("serving.nccl.race", ["serving.nccl.race"]),
    ],
)
def test_a_message_is_looked_up_by_its_name_its_line_or_its_words(text: str, names: list[str] | None) -> None:
    found = [entry.names[0] for entry in troubleshooting.lookup(text)]
    assert found == names if names is not None else len(found) > 5 and all(one.startswith(text) for one in found)
    assert called(troubleshooting.main, text).returncode == (names == [])


def sample(**options: Any) -> list[dict[str, Any]]:
    return [{"ansible.builtin.fail": {"msg": LEFT_OUT}, **options}]


def test_messages_are_read_within_blocks_and_their_rescue(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yml"
    path.write_text(yaml.safe_dump([{"block": sample(), "rescue": sample(when="x")}]))
    assert [each.rule for each in refusals(path)] == ["run.part", "run.part"]


def test_checks_take_their_sentences_from_rules() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "plugins").rglob("*.py"))
    assert not re.findall(r'\bFinding\(f?"', code)
    launches = yaml.safe_load((ROOT / "plugins/plugin_utils/_sglang/rules.yml").read_text(encoding="utf-8"))
    assert {name for name in launches if f'"{name}"' not in code} == set()
