# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove a group's transport from the controller, or judge logs where the task runs.

The proof of a group is an action, because a module cannot show progress.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE, RANK
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import find_containers
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import again
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import from_options
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import failed, proof_screen
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.proof import (
    LARGEST_BUFFER,
    Progress,
    Proof,
    Settings,
    full_expectation,
)

NO_PLAN = "the value of plan is no serving plan"
LOGS = frozenset({"files", "pods", "text"})


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.nccl_transport``: the proof of a group for a plan without logs, and else the module."""

    ROLE = "nccl_verify"
    # The module reads files of the task's host.
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the proof of a group, or the module's result. Raise AnsibleActionFail for invalid options."""
        options = dict(self._task.args)
        if "plan" not in options or options.keys() & LOGS:
            return self._judge(options, tmp, task_vars)
        if more := sorted(options.keys() - {"plan"}):
            raise AnsibleActionFail(
                f"{', '.join(more)}: with a plan and without files, pods or text, this module proves the transport of "
                "the running group with the options of role nccl_verify. Set nccl_verify_… instead, or name the logs"
            )
        return super().run(tmp, task_vars)

    def _judge(self, options: dict[str, Any], tmp: str | None, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Run the module; a plan replaces the expectation, to which ``expect`` adds."""
        result: dict[str, Any] = ActionBase.run(self, tmp, task_vars)
        if "plan" in options:
            plan = options.pop("plan")
            if not isinstance(plan, Mapping) or "expect" not in plan:
                raise AnsibleActionFail(f"{NO_PLAN}. Give the fact gb10_serving_plan, or use expect instead of plan")
            options["expect"] = full_expectation(plan, options.get("expect") or {})
        return result | self._execute_module(module_args=options, task_vars=task_vars)

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the proof, skipped in check mode if there is no group; fail if the transport is not proved."""
        plan = options["plan"]
        _refuse(plan, options)
        selector = f"{INSTANCE}={plan['instance']},{RANK}"
        check_mode = bool(self._task.check_mode)
        try:
            cluster = Cluster(options["kubeconfig"], options["kube_context"])
            containers = find_containers(cluster, options["namespace"], selector, "sglang", RANK)
        except ClusterError as error:
            if check_mode:
                return {"changed": False, "skipped": True, "msg": f"there is no group to prove: {error}"}
            raise AnsibleActionFail(f"{error}. Run playbook serve first where the group is not deployed") from None
        # While the fallback serves, the pod of the planned preset on the lost node stays until the node returns.
        pods = {rank["pod"] for rank in plan["ranks"]}
        containers = [one for one in containers if one.pod in pods]
        if len(containers) != len(plan["ranks"]) and not check_mode:
            raise AnsibleActionFail(
                f"{len(containers)} of {len(plan['ranks'])} ranks of {plan['instance']} run in namespace "
                f"{options['namespace']}, and a part of a group proves nothing. Run playbook serve, or serve_status to "
                "see what is missing"
            )
        directory = f"transport-{plan['instance']}-{plan.get('transport', 'roce')}"
        settings = from_options(Settings, options, evidence=Path(options["results_dir"]) / directory)
        progress = Progress(tell, time.monotonic, time.sleep)
        proved = Proof(containers, plan, settings, progress, active=not check_mode).prove()
        if not proved["satisfied"]:
            screen = proof_screen(proved, plan, settings.remarks)
            return {"changed": False} | failed(
                replace(screen, command=again("verify")), plan["instance"], proved, task_vars, self._templar.template
            )
        return {"changed": False, "msg": proved["msg"], "proof": proved}


def _refuse(plan: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if not plan.get("ranks"):
        raise AnsibleActionFail(
            "there is no serving plan to verify. Run role serving_plan before role nccl_verify, as playbook verify does"
        )
    if plan["expect"]["ranks"] < 2:
        raise AnsibleActionFail(
            f"group {plan['instance']} has one GPU, which talks to no other, so there is no transport to prove. "
            "Choose a preset for several nodes, or run playbook verify, which only asks such a group questions"
        )
    for name in ("min_busbw", "max_latency"):
        limits = options[name]
        if unknown := sorted(limits.keys() - {"rdma", "tcp"}):
            raise AnsibleActionFail(
                f"nccl_verify_{name} has the key {unknown[0]}, which is not a class of transport and would limit "
                "nothing. Use rdma or tcp"
            )
        if any(map(float, limits.values())) and not options["bandwidth_bytes"]:
            raise AnsibleActionFail(
                f"nccl_verify_{name} is {dict(limits)}, but nccl_verify_bandwidth_bytes is 0, so nothing is measured. "
                "Set nccl_verify_bandwidth_bytes to 67108864, or run playbook latency"
            )
    if options["bandwidth_bytes"] > LARGEST_BUFFER:
        raise AnsibleActionFail(
            f"nccl_verify_bandwidth_bytes is {options['bandwidth_bytes']}, more than 4 GB. A GB10 takes the buffer "
            "from the memory that serves, and 16 GB froze one. Set 1 GB or less: bandwidth does not grow beyond it"
        )
