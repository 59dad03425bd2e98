# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the table of versions in docs/upgrade.md is that of the files that CI and the lab use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8").partition("| part | supported | tested |")[2]
ROWS = {row.split("|")[1].strip(): row for row in TABLE.partition("\n\n")[0].splitlines()[2:]}


def test_the_cores_are_those_of_ci() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    pairs = set(re.findall(r'core: "([\d.]+)", python: "([\d.]+)"', ci))
    (between,) = re.findall(r"tests/core ([\d.]+)", ci)
    cores = {core for core, _python in pairs} | {between}
    assert set(re.findall(r"\d\.\d\d", ROWS["ansible-core"])) == cores
    for core, python in pairs:
        assert f"{python} with {core}" in ROWS["Python of the controller"]
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    assert runtime["requires_ansible"].removeprefix(">=").startswith(min(cores))


def test_kubernetes_is_that_of_the_lab() -> None:
    lab = json.loads((ROOT / "lab" / "kubernetes" / "versions.json").read_text(encoding="utf-8"))
    for version in (lab["kubernetes"], lab["k3s"], lab["earlier"]):
        assert version in ROWS["K3s"]
    assert lab["kubernetes"] in ROWS["clusters of others"]


def test_the_releases_of_sglang_are_those_with_a_catalogue() -> None:
    known = sorted(Version.parse(path.stem) for path in (ROOT / "profiles" / "catalogue").glob("*.json"))
    assert f"| {known[0]} to {known[-1]} |" in ROWS["SGLang"]
