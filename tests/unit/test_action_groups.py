# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the action group of the cluster has exactly the modules with a kubeconfig and a context."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_group_has_every_module_that_talks_to_the_cluster() -> None:
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    modules = [path for path in ROOT.glob("plugins/modules/*.py") if re.search(r"shared\.cluster\b", path.read_text())]
    assert runtime["action_groups"]["cluster"] == sorted(path.stem for path in modules)
