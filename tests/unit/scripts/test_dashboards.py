# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the dashboards are those that the script writes, and that every alert has its section of the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dashboards
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "roles/monitoring/files"
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


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


def test_panels_have_titles_units_and_places_of_their_own() -> None:
    for name in dashboards.DASHBOARDS:
        panels = json.loads((FILES / f"dashboards/{name}.json").read_text())["panels"]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len({panel["title"] for panel in panels}) == len(panels)
        assert all(panel["fieldConfig"]["defaults"]["unit"] and panel["targets"] for panel in panels)


def test_panels_show_their_legends_and_every_query_has_a_letter() -> None:
    for name in dashboards.DASHBOARDS:
        written = json.loads((FILES / f"dashboards/{name}.json").read_text())
        for panel in written["panels"]:
            assert panel["options"]["legend"]["showLegend"] is True
            letters = [target["refId"] for target in panel["targets"]]
            assert "" not in letters and len(set(letters)) == len(letters)
        (chosen,) = (one for one in written["templating"]["list"] if one["type"] == "query")
        assert chosen["current"]["value"] == ["$__all"]


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
