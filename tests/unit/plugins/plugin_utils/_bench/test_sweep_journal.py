# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import (
    JournalDamaged,
    append,
    collection_version,
    commit,
    encode,
    read,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import COLLECTION


def test_records_come_back_in_order(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "run.jsonl"
    for i in range(3):
        append(log, {"cell": f"c{i}", "text": "sch\u00f6n"})
    assert [r["cell"] for r in read(log)] == ["c0", "c1", "c2"]
    assert all("sha256" in json.loads(line) for line in log.read_text().splitlines())


def test_a_record_is_on_the_disk_before_the_cell_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "run.jsonl"
    written: list[bytes] = []
    monkeypatch.setattr(journal.os, "fsync", lambda _file: written.append(log.read_bytes()))
    append(log, {"cell": "a"})
    assert written == [encode({"cell": "a"})]


@pytest.mark.parametrize("kept", range(1, 20, 3))
def test_a_crash_in_mid_write_loses_only_the_unfinished_line(tmp_path: Path, kept: int) -> None:
    log = tmp_path / "run.jsonl"
    append(log, {"cell": "whole"})
    with log.open("ab") as handle:
        handle.write(encode({"cell": "torn"})[:kept])
    assert [r["cell"] for r in read(log)] == ["whole"]
    append(log, {"cell": "next"})
    assert [r["cell"] for r in read(log)] == ["whole", "next"]


def test_an_edited_record_is_named(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    append(log, {"tok_s": 54.0})
    append(log, {"tok_s": 58.9})
    log.write_text(log.read_text().replace("54.0", "94.0"))
    with pytest.raises(JournalDamaged, match=r"run\.jsonl:1: the checksum"):
        read(log)
    for odd in (b"no JSON", b"{}", b"7"):
        log.write_bytes(encode({"cell": "a"}) + odd + b"\n" + encode({"cell": "b"}))
        with pytest.raises(JournalDamaged, match=r"run\.jsonl:2: not a record"):
            read(log)
    with pytest.raises(AnsibleActionFail, match=r"run\.jsonl:2: not a record"):
        journal.read_journal(log)
    log.write_bytes(encode({"cell": "a"}) * 2)
    assert journal.existing_journal(log) == [{"cell": "a"}] * 2
    with pytest.raises(AnsibleActionFail, match=r"this directory has run\.jsonl, x\.jsonl\."):
        (tmp_path / "x.jsonl").touch()
        journal.existing_journal(tmp_path / "none.jsonl")
    with pytest.raises(AnsibleActionFail, match=r"this directory has no journal\."):
        journal.existing_journal(tmp_path / "deep/none.jsonl")


def test_no_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []


def test_an_installed_collection_has_its_version_in_its_manifest_and_no_commit(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"collection_info": {"name": "cluster", "version": "9.8.7"}}))
    assert collection_version(tmp_path) == "9.8.7"
    assert commit(tmp_path) == ""


def test_a_checkout_has_its_version_in_galaxy_yml() -> None:
    assert collection_version() == yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"]
