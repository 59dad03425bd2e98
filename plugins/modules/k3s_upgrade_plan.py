#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the order of an upgrade, also after an interrupted one.

An annotation on the namespace and the nodes marks an upgrade in progress, so that an interrupted one can be resumed.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_upgrade_plan
short_description: Plan the order of a K3s upgrade
version_added: 0.1.0
description:
  - Reads from the cluster which model groups run, and the marks that an interrupted upgrade left.
  - Orders servers before agents, stops the model group before the first node and starts it after the last, and omits
    the steps that an interrupted run has already done.
  - Fails with all findings at once if a node would skip a minor release or be downgraded.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  namespace:
    description: Namespace of the model groups.
    type: str
    required: true
  version:
    description: The release to upgrade to.
    type: str
    required: true
  nodes:
    description: The present state of the hosts.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Name of the host.
        type: str
        required: true
      node:
        description: Name of its node in the cluster.
        type: str
        required: true
      server:
        description: Whether the host runs the control plane.
        type: bool
        required: true
      installed:
        description: Version of the host's K3s binary; empty if K3s is not installed.
        type: str
        required: true
      stale:
        description: Whether the host's service still runs older files.
        type: bool
        default: false
"""

EXAMPLES = r"""
- name: Plan the upgrade
  gb10.cluster.k3s_upgrade_plan:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    version: v1.36.5+k3s1
    nodes:
      - {host: control, node: control, server: true, installed: v1.36.4+k3s1}
      - {host: spark1, node: spark1, server: false, installed: v1.36.4+k3s1}
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: The steps, each with C(action), C(host), C(before) and C(after).
  returned: always
  type: list
  elements: dict
order:
  description: The steps as numbered sentences.
  returned: always
  type: list
  elements: str
hosts:
  description: The hosts of the steps, in order.
  returned: always
  type: list
  elements: str
instances:
  description: Instances of the running model groups.
  returned: always
  type: list
  elements: str
findings:
  description: The reasons why the upgrade is not possible.
  returned: always
  type: list
  elements: dict
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Rule, Rules
from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import parse_k3s_version
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE, UPGRADE

RULES = Rules(
    {
        "upgrade.not_installed": Rule(
            "no K3s of this collection is installed here",
            "Run playbook kubernetes first, or --limit the upgrade to the hosts that are in the cluster",
            "k3s",
        ),
        "upgrade.downgrade": Rule(
            "{installed} is newer, and K3s's datastore can't go back",
            "Correct k3s_version. To go back, run playbooks reset, fabric and kubernetes with this release, and restore"
            " with a backup of it",
            "k3s_version",
        ),
        "upgrade.skips_minor": Rule(
            "{installed} runs here, and Kubernetes supports one minor release at a time",
            "Upgrade to the newest v{major}.{next} first",
            "k3s_version",
            source="Kubernetes version skew policy",
        ),
    }
)
Action = Literal["stop-group", "upgrade", "release", "start-group", "verify"]


@dataclass(frozen=True)
class Node:
    """A host: ``installed`` is its binary's version; ``stale`` is true while its service still runs older files.

    ``marked`` is true if an unfinished upgrade cordoned the node.
    """

    host: str
    server: bool
    installed: str
    stale: bool
    marked: bool


@dataclass(frozen=True)
class Step:
    """One step; ``host`` is empty for steps of the model group."""

    action: Action
    host: str = ""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        texts = {
            "stop-group": "stop the whole model group",
            "upgrade": f"{self.host}: drain, {self.before} -> {self.after}, wait until ready, uncordon",
            "release": f"{self.host}: runs {self.after} already, uncordon it",
            "start-group": "start the whole model group",
            "verify": "verify the transport",
        }
        return texts[self.action]


@dataclass(frozen=True)
class Plan:
    """The steps in order; empty if a finding is an error."""

    steps: tuple[Step, ...]
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, with the order of steps as text."""
        return {
            "steps": [asdict(step) for step in self.steps],
            "order": [f"{number}. {step}" for number, step in enumerate(self.steps, start=1)],
            "hosts": [step.host for step in self.steps if step.host],
            "findings": [finding.as_dict() for finding in self.findings],
        }


def _check(node: Node, target: str) -> Finding | None:
    """Return why ``target`` is not possible on this node."""
    if not node.installed:
        return RULES.finding("upgrade.not_installed", None, node.host)
    have, want = parse_k3s_version(node.installed), parse_k3s_version(target)
    if want < have:
        return RULES.finding("upgrade.downgrade", target, node.host, installed=node.installed)
    major, minor = have.release[:2]
    if want.release[0] != major or want.release[1] > minor + 1:
        words = {"installed": node.installed, "major": major, "next": minor + 1}
        return RULES.finding("upgrade.skips_minor", target, node.host, **words)
    return None


def plan_upgrade(nodes: Sequence[Node], target: str, *, group_running: bool, group_stopped_by_us: bool) -> Plan:
    """Return the steps: servers before agents, each in the given order, and the model group stopped around them.

    ``group_running`` is the state in the cluster. ``group_stopped_by_us`` means that an interrupted run stopped the
    group; it is then started at the end although it is not running now. Raise ValueError for an invalid ``target``.
    """
    parse_k3s_version(target)
    findings = [finding for node in nodes if (finding := _check(node, target))]
    if findings:
        return Plan((), tuple(findings))
    ordered = [node for node in nodes if node.server] + [node for node in nodes if not node.server]
    steps = []
    for node in ordered:
        if node.stale or parse_k3s_version(node.installed) != parse_k3s_version(target):
            steps.append(Step("upgrade", node.host, node.installed, target))
        elif node.marked:
            steps.append(Step("release", node.host, node.installed, target))
    restart = group_stopped_by_us or (group_running and any(step.action == "upgrade" for step in steps))
    if restart:
        if group_running and any(step.action == "upgrade" for step in steps):
            steps.insert(0, Step("stop-group"))
        steps += [Step("start-group"), Step("verify")]
    return Plan(tuple(steps), ())


def read_nodes(hosts: Iterable[Mapping[str, Any]], cluster_nodes: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the hosts with their marks of an interrupted upgrade; ``cluster_nodes`` are the API's Node objects."""
    there = marked(cluster_nodes)
    return [
        Node(host["host"], host["server"], host["installed"], host["stale"], host["node"] in there) for host in hosts
    ]


def marked(objects: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the objects with the mark of an unfinished upgrade."""
    return {item["metadata"]["name"] for item in objects if UPGRADE in (item["metadata"].get("annotations") or {})}


def running_instances(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the instances of the model groups to which these pods belong."""
    labels = (pod["metadata"].get("labels") or {} for pod in pods)
    return sorted({found[INSTANCE] for found in labels if INSTANCE in found})


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "namespace": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "nodes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "host": {"type": "str", "required": True},
                    "node": {"type": "str", "required": True},
                    "server": {"type": "bool", "required": True},
                    "installed": {"type": "str", "required": True},
                    "stale": {"type": "bool", "default": False},
                },
            },
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "instances": []}
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        result["instances"] = running_instances(cluster.pods(options["namespace"], INSTANCE))
        plan = plan_upgrade(
            read_nodes(options["nodes"], cluster.nodes()),
            options["version"],
            group_running=bool(result["instances"]),
            group_stopped_by_us=bool(marked(cluster.objects("v1/namespaces", name=options["namespace"]))),
        )
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), steps=[], order=[], hosts=[], findings=[], **result)
    result.update(plan.as_dict())
    if findings.has_errors(plan.findings):
        module.fail_json(msg=findings.format_findings(plan.findings), **result)
    module.exit_json(msg=f"{len(plan.steps)} steps" if plan.steps else "Nothing to upgrade.", **result)


if __name__ == "__main__":
    main()
