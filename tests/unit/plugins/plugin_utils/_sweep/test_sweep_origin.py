# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._paths import COLLECTION
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.origin import collection_version, commit


def test_an_installed_collection_has_its_version_in_its_manifest_and_no_commit(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"collection_info": {"name": "cluster", "version": "9.8.7"}}))
    assert collection_version(tmp_path) == "9.8.7"
    assert commit(tmp_path) == ""


def test_a_checkout_has_its_version_in_galaxy_yml() -> None:
    assert collection_version() == yaml.safe_load((COLLECTION / "galaxy.yml").read_text())["version"]
