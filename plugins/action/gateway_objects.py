# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan which groups are behind the gateway, and render its objects on the controller, where its program is a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import as_dicts, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, shown_warnings
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import ROLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import from_options
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import router

START = ROLES / "gateway" / "files" / "start_gateway.py"


class ActionModule(ControllerAction):
    """Reads the options of role gateway; it does not access the cluster and changes nothing."""

    ROLE = "gateway"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the objects, or why the groups cannot be behind one gateway."""
        live = options["live"]
        chosen = router.members(options["services"], options["groups"])
        found = []
        if options["leaving"]:
            chosen = router.staying(live, chosen, options["leaving"])
        else:
            key = router.has_key(live) if live else bool(options["api_key"])
            found = router.findings(chosen, options["groups"], key)
        if has_errors(found):
            text = "The gateway can't be changed and stays as it is."
            return {"changed": False, "failed": True, "findings": as_dicts(found), "msg": text}
        if live:
            objects = [router.moved(live, chosen)]
        else:
            image = options["pulled"] or options["image"]
            own = {"key": bool(options["api_key"]), "image": image, "owner": from_options(Owner, options)}
            settings = from_options(router.Router, options, **own)
            objects = router.objects(settings, chosen, START.read_text(encoding="utf-8"))
        return {
            "changed": False,
            "objects": objects,
            "revision": objects[-1]["spec"]["template"]["metadata"]["labels"][REVISION],
            "warnings": shown_warnings(found),
            "msg": "\n".join(f"{one.name}: {one.url}" for one in chosen) or "No group is behind the gateway.",
        }
