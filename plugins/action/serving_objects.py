# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the Kubernetes objects of a serving group on the controller, because scripts and patches are files there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import Owner
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES, ROLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import from_options
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import PROGRAM as SUPERVISOR
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import SWITCH_PROGRAM as SWITCH
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import Access, render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import Fallback
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PROGRAM as SIDECAR
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions, cache_key, start_limit

SCRIPTS = ROLES / "sglang" / "files"
PATCHES = PROFILES / "patches"
IN_EVERY_POD = (
    *("all_reduce_bandwidth.py", "front_door.py", "generate_probe.py"),
    *("start_rank.py", "watch_load.py", "witness.py"),
)


class ActionModule(ControllerAction):
    """Reads a serving plan and the options of role sglang; it does not access the cluster and changes nothing."""

    ROLE = "sglang"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the objects. The values of secrets are only used to see whether they are set."""
        plan = _as_wanted(Plan.from_dict(options["plan"]), options)
        fallback: Fallback | None = None
        if options["plan"].get("fallback"):
            fallback = plain.load(Fallback, options["plan"]["fallback"])
            fallback = replace(fallback, plans={n: _as_wanted(p, options) for n, p in fallback.plans.items()})
        key = cache_key(plan, options["arch"], options["digest"]) if options["cache_dir"] else ""
        cache = f"{options['cache_dir']}/{key}" if key else ""
        secrets = {"HF_TOKEN": (f"{options['instance']}-secrets", "hf-token")} if options["hf_token"] else {}
        # A patch of the user has an absolute path. The hooks import gb10_patch, which is not a hook itself.
        plans = [plan, *(fallback.plans.values() if fallback else ())]
        patches = {f"{p.name}.py": Path(p.path) for one in plans for p in one.patches if p.needed}
        hooks = {name: path if path.is_absolute() else PATCHES / name for name, path in patches.items()}
        hooks |= {"gb10_patch.py": PATCHES / "gb10_patch.py"} if hooks else {}
        own = {"secrets": secrets, "cache_dir": cache, "owner": from_options(Owner, options)}
        pods = from_options(PodOptions, options, **own)
        objects = render(
            plan,
            pods,
            {name: _text(SCRIPTS / name) for name in IN_EVERY_POD},
            {name: _text(path) for name, path in hooks.items()},
            from_options(Access, options),
            _programs(SIDECAR, SUPERVISOR),
            fallback,
            _programs(SWITCH, SUPERVISOR) if fallback else {},
        )
        return {"changed": False, "objects": objects, "cache_key": key, "start_limit": start_limit(plan, pods)}


def _as_wanted(plan: Plan, options: Mapping[str, Any]) -> Plan:
    plan = replace(plan, image=options["image"] or plan.image)
    return plan if options["patches"] else replace(plan, patches=())


def _programs(*names: str) -> dict[str, str]:
    return {str(path): source for name in names for path, source in package_files(name, Path()).items()}


def _text(path: Path) -> str:
    # These texts are part of the group's revision: blank lines at the end of a file must not replace a running group.
    return path.read_text(encoding="utf-8").rstrip() + "\n"
