# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import fabric_variables, plain


class HostVars(dict[str, Any]):
    """Variables of a host. Reading one whose template fails raises an error, as in Ansible's own mapping."""

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        if isinstance(value, Exception):
            raise value
        return value


def task_vars(present: list[str], **hosts: dict[str, Any]) -> dict[str, Any]:
    return {
        "hostvars": {name: HostVars(values) for name, values in hosts.items()},
        "ansible_play_hosts_all": present,
    }


def test_facts_of_a_host_have_precedence_over_declared_values() -> None:
    facts = {"gb10_pf_totalvfs": {"enp1s0f0np0": 2}, "gb10_node_id": 9}
    declared = {"gb10_node_id": 1, "gb10_pf_totalvfs": {"enp1s0f0np0": 8}, "ansible_facts": facts, "other": 1}
    variables, findings = fabric_variables(["a"], task_vars(["a"], a=declared))
    assert variables == {"a": {"gb10_node_id": 1, "gb10_pf_totalvfs": {"enp1s0f0np0": 2}}}
    assert findings == []


def test_hosts_outside_this_run_are_assumed_to_be_like_the_least_capable_inside() -> None:
    asked = {"ansible_facts": {"gb10_pf_totalvfs": {"enp1s0f0np0": 4, "enP2p1s0f0np0": 0, "enp1s0f1np1": 8}}}
    more = {"ansible_facts": {"gb10_pf_totalvfs": {"enp1s0f0np0": 8}}}
    known = task_vars(["a", "c"], a=asked, b={"gb10_node_id": 2}, c=more)
    for hosts in (["a", "b", "c"], ["c", "b", "a"]):
        variables, _findings = fabric_variables(hosts, known)
        assert variables["b"] == {"gb10_node_id": 2, "gb10_assumed_vf_count": 4}
        assert "gb10_assumed_vf_count" not in variables["a"]


@pytest.mark.parametrize("present", [["a"], ["a", "b"]])
def test_without_the_facts_of_any_host_no_number_of_vfs_is_assumed(present: list[str]) -> None:
    known = {"a": {"gb10_node_id": 1}, "b": {"gb10_node_id": 2}}
    assert fabric_variables(["a", "b"], task_vars(present, **known))[0] == known


def test_strings_of_ansible_become_ordinary_ones() -> None:
    class Tagged(str):
        """PyYAML refuses it."""

    value = plain({Tagged("a"): (Tagged("b"), [Tagged("c"), 1, None])})
    assert yaml.safe_dump(value, default_flow_style=True) == "{a: [b, [c, 1, null]]}\n"
