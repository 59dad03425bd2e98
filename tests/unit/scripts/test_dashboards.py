# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the dashboards are those that the script writes, and that every alert has its section of the runbook."""

import json
import re
from pathlib import Path
from typing import Any

import dashboards
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "roles/monitoring/files"
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
POD = ROOT / "plugins/module_utils/_pod"
# Metrics of the sidecar whose text says that they are a state: 1 if, 1 while, always 1, or 0 ..., 1 ..., 2 ....
STATES = {
    name if name.startswith("gb10_") else f"gb10_transport_{name}"
    for path in (POD / "gate.py", POD / "watch.py")
    for name, text in re.findall(r'"(\w+)"[:,]\s+\(?\s*(?:"gauge",)?\s*"([^"]+)"', path.read_text())
    if re.search(r"\b1 (if|while)\b|always 1|: 0 \w+, 1", text)
} | {"gb10_load_ended"}
# The alert of a threshold, and how many units of the alert are one of the panel.
ALERTS = {
    "Memory available": ("Gb10MemoryPressure", 1),
    "Time stalled for memory": ("Gb10MemoryPressure", 1),
    "GPU clock": ("Gb10GpuThrottled", 1e-6),
    "Disk used": ("Gb10DiskFull", 1),
    "Restarts of ranks within half an hour": ("Gb10RankRestarting", 1),
}


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_dashboard_is_the_one_that_the_script_writes(name: str) -> None:
    assert (FILES / f"dashboards/{name}.json").read_text() == dashboards.render(name), "run scripts/dashboards.py"


def test_the_check_names_files_that_are_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboards, "DIRECTORY", tmp_path)
    assert dashboards.main(["--check"]) == 1
    assert "node.json" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert dashboards.main([]) == 0
    assert dashboards.main(["--check"]) == 0


def test_the_role_ships_every_dashboard() -> None:
    shipped = (ROOT / "roles/monitoring/vars/main.yml").read_text()
    assert all(f"/files/dashboards/{name}.json" in shipped for name in dashboards.DASHBOARDS)


@pytest.fixture(scope="module", params=dashboards.DASHBOARDS)
def written(request: pytest.FixtureRequest) -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FILES / f"dashboards/{request.param}.json").read_text())
    return board


def test_panels_have_titles_units_and_places_of_their_own(written: dict[str, Any]) -> None:
    panels = written["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["fieldConfig"]["defaults"]["unit"] and panel["targets"] for panel in panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_panels_show_their_legends_and_every_query_has_a_letter(written: dict[str, Any]) -> None:
    for panel in written["panels"]:
        assert panel["type"] == "stat" or panel["options"]["legend"]["showLegend"] is True
        letters = [target["refId"] for target in panel["targets"]]
        assert "" not in letters and len(set(letters)) == len(letters)
    (chosen,) = (one for one in written["templating"]["list"] if one["type"] == "query")
    assert chosen["current"]["value"] == ["$__all"]


def test_a_dashboard_links_to_the_others_and_to_the_runbook(written: dict[str, Any]) -> None:
    others, runbook = written["links"]
    assert others["type"] == "dashboards" and set(others["tags"]) <= set(written["tags"])
    assert others["keepTime"] and others["includeVars"]
    assert {rule["annotations"]["runbook_url"].partition("#")[0] for rule in RULES} == {runbook["url"]}


def test_states_are_tiles_or_timelines_and_every_value_has_a_text_and_a_color(written: dict[str, Any]) -> None:
    for panel in written["panels"]:
        metrics = {name for target in panel["targets"] for name in re.findall(r"gb10_\w+", target["expr"])}
        states = metrics & STATES or "% 2" in panel["targets"][0]["expr"]
        assert (panel["type"] in ("stat", "state-timeline")) == bool(states), panel["title"]
        for mapping in panel["fieldConfig"]["defaults"]["mappings"] if states else []:
            assert {"0", "1"} <= mapping["options"].keys()
            assert all(one["text"] and one["color"] for one in mapping["options"].values())


def test_the_first_answer_is_about_roce() -> None:
    for name in ("group", "transport"):
        first, second = json.loads((FILES / f"dashboards/{name}.json").read_text())["panels"][:2]
        assert (first["title"], first["type"], second["type"]) == ("All RoCE now?", "stat", "state-timeline")
        # A state of an hour ago is no answer to "now".
        assert first["targets"][0]["instant"] and not first["targets"][0]["range"]
        assert first["targets"][0]["expr"] == f"min({second['targets'][0]['expr']})"


@pytest.mark.parametrize("title", dashboards.LIMITS)
def test_a_threshold_is_the_one_of_an_alert(title: str) -> None:
    alert, factor = ALERTS[title]
    (rule,) = [rule for rule in RULES if rule["alert"] == alert]
    limit, below = dashboards.LIMITS[title]
    written = {float(number) / factor for _sign, number in re.findall(r"([<>]) ([\d.]+)", rule["expr"])}
    assert limit in written or round(1 - limit, 6) in written
    assert below == ("<" in rule["expr"] and title not in ("Disk used", "Time stalled for memory"))


def test_every_description_belongs_to_a_panel() -> None:
    titles = {title for _title, _values, panels in dashboards.DASHBOARDS.values() for title, *_rest in panels}
    assert set(dashboards.DESCRIPTIONS) <= titles


def test_every_alert_has_its_section_of_the_runbook_and_no_section_is_left_over() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    sections = re.findall(r"^## (\w+)$", runbook, re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/runbook.md#{rule['alert'].lower()}")
        text = runbook.split(f"## {rule['alert']}\n")[1].split("\n## ")[0]
        assert re.findall(r"^- \*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Meaning", "Look", "Do"]
        assert rule["labels"]["severity"] in ("critical", "warning")
