# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that link changes, speeds and errors since the previous run are reported once."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import fabric_health


class Host:
    """A sysfs with one port, and the module's file."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._root, self._capsys, self.saved = root / "sys", capsys, root / "snapshot.json"
        self.write(carrier_changes=2, speed=200000, out_of_sequence=0, np_cnp_sent=0)

    def write(self, **values: int) -> None:
        netdev = self._root / "class/net/enp1s0f0np0"
        counters = self._root / "class/infiniband/rocep1s0f0/ports/1/hw_counters"
        (netdev / "device").mkdir(parents=True, exist_ok=True)
        (netdev / "device/sriov_totalvfs").write_text("8\n")
        counters.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (netdev if name in {"carrier_changes", "speed"} else counters).joinpath(name).write_text(f"{value}\n")

    def read(self, **more: Any) -> dict[str, Any]:
        given = {"sysfs_root": str(self._root), "path": str(self.saved), **more}
        with patch_module_args(given), pytest.raises(SystemExit):
            fabric_health.main()
        return dict(json.loads(self._capsys.readouterr().out))

    def rules(self, **more: Any) -> list[tuple[str, Any]]:
        return [(finding["rule"], finding["value"]) for finding in self.read(**more)["findings"]]


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, capsys)


def test_the_first_snapshot_reports_nothing_and_a_quiet_time_is_said(host: Host) -> None:
    first = host.read()
    assert (first["seconds"], first["findings"]) == (None, [])
    assert first["msg"] == "1 ports: the first snapshot since the host started"
    second = host.read()
    assert second["seconds"] in {0, 1}
    assert second["msg"].startswith("1 ports: nothing happened in ")
    assert not second["changed"]


def test_everything_that_happened_is_reported_once(host: Host) -> None:
    host.read()
    host.write(carrier_changes=4, speed=100000, out_of_sequence=7, np_cnp_sent=99)
    expected = [("health.link", 2), ("health.speed", 100000), ("health.errors", "out_of_sequence +7")]
    assert host.rules(_ansible_check_mode=True) == expected
    assert host.rules() == expected
    assert host.rules() == []


def test_a_link_that_is_down_has_no_other_speed_and_reset_counters_count_from_zero(host: Host) -> None:
    host.write(out_of_sequence=50)
    host.read()
    host.write(carrier_changes=3, speed=-1, out_of_sequence=2)
    assert host.rules() == [("health.link", 1), ("health.errors", "out_of_sequence +2")]


@pytest.mark.parametrize("text", ["", "[]", '{"time": 1}', '{"time": "x", "links": 3, "counters": {}}'])
def test_a_file_of_something_else_is_not_overwritten(host: Host, text: str) -> None:
    host.saved.write_text(text)
    result = host.read()
    assert result["failed"]
    assert "Remove it and run again" in result["msg"]
    assert host.saved.read_text() == text


def test_a_snapshot_that_cannot_be_saved_fails(host: Host, tmp_path: Path) -> None:
    assert "cannot be saved" in host.read(path=str(tmp_path / "missing" / "snapshot.json"))["msg"]
