# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every module that may end before its work is done is run again by the action for slices."""

from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import documented_spec

ROOT = Path(__file__).resolve().parents[4]


def test_every_module_that_waits_in_slices_is_run_until_it_is_done() -> None:
    names = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    sliced = {name for name in names if "progress" in documented_spec(name)}
    # These need no slices, and have the action because they run on the controller.
    wanted = sliced - {"pods_wait"} | {"api_apply", "node_room_info", "k3s_airgap_info", "kubeconfig"}
    routes = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["plugin_routing"]["modules"]
    own = "gb10.cluster.host_files"  # test_host_files_action.py
    routed = {name: route for name, route in routes.items() if route.get("action_plugin") not in (None, own)}
    assert routed == {name: {"action_plugin": "gb10.cluster.pods_wait"} for name in wanted}
