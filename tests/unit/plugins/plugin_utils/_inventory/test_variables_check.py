# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that unknown variables, invalid values and empty groups are found."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import (
    GONE,
    Empty,
    Unreadable,
    check_groups,
    check_guards,
    check_node_names,
    check_ports,
    check_provider,
    check_servers,
    check_strategy,
    check_tags,
    check_variables,
    load_known,
    needed_groups,
    unreadable,
    usable,
)

ROOT = Path(__file__).resolve().parents[5]


def messages(extra: dict[str, Any] | None = None, **variables: Any) -> list[str]:
    hosts = {"spark1": variables, "spark2": variables}
    return [str(finding) for finding in check_variables(load_known(), hosts, extra or {})]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gb10_fabirc_mtu", "Did you mean gb10_fabric_mtu?"),
        ("gb10_quite_different", "docs/variables.md"),
        ("sglang_wait_timout", "Did you mean sglang_wait_timeout?"),
        ("fabric_check_bandwith", "Did you mean fabric_check_bandwidth?"),
    ],
)
def test_a_misspelt_name_is_an_error_for_all_hosts_at_once(name: str, meant: str) -> None:
    (message,) = messages(**{name: 1})
    assert message.startswith("error: all hosts: ")
    assert meant in message


@pytest.mark.parametrize("name", GONE)
def test_a_removed_variable_is_refused_and_stands_in_the_upgrade_notes(name: str) -> None:
    (message,) = messages(**{name: 1})
    assert message.startswith("error: all hosts: ")
    assert f"it was removed: {GONE[name]}. Remove the variable" in message
    assert f"`{name}`" in (ROOT / "docs/upgrade.md").read_text(encoding="utf-8")


def test_an_unknown_name_below_a_role_may_belong_to_something_else() -> None:
    (message,) = messages(k3s_orchestration_extra_flags="x")
    assert message.startswith("warning: ")


@pytest.mark.parametrize("name", ["spark_rack", "gb10_lab_state", "ansible_user"])
def test_other_names_are_not_looked_at(name: str) -> None:
    assert messages(**{name: "x"}) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("gb10_fabric_qos", "ture", "Write true or false."),
        ("gb10_fabric_mtu", "nine", "Write a whole number."),
        ("gb10_fabric_topology", "mesh", "Choose one of switch, direct, ring, chain, mixed, single."),
        ("k3s_version", "latest", "Write it as v1.36.4+k3s1."),
        ("sglang_memory_guard_percent", [3, 5], "the larger one first"),
        ("node_tuning_memory_guard_percent", ["3"], "the larger one first"),
        ("serving_plan_vf_index", "one", "Write a whole number."),
        ("gb10_fabric_rails", "rail0", "Write a list of mappings: one line per entry, as - {name: value, …}."),
        (
            "gb10_fabric_rails",
            ["rail0", "rail1"],
            "Write a list of mappings: one line per entry, as - {name: value, …}.",
        ),
        ("sglang_memory_guard_percent", {"5": 3}, "Write a list."),
        ("gb10_fabric_pfs", ["enp1s0f0np0"], "Write a mapping, as {name: value}."),
        ("gb10_models_dir", "var/lib", "such as /srv/models"),  # one finding, though /var/lib has another
        ("k3s_api_host", "Spark1.LOCAL.", "could not resolve a .local name"),
        ("node_tuning_swappiness", "high", "0 to 200"),
        ("gb10_models_dir", "/", "is a directory of the system"),
        ("gb10_models_dir", "//var/./lib/", "/var/lib is a directory of the system or in its memory"),
        ("k3s_data_dir", "/etc", "such as /var/lib/rancher/k3s"),
        ("k3s_data_dir", "k3s", "such as /var/lib/rancher/k3s"),
        ("gb10_models_dir", "/dev/shm/models", "/dev/shm/models is a directory of the system or in its memory"),
        ("gb10_models_dir", "/srv/models/../../tmp/x", "/tmp/x is a directory of the system"),
        ("device_plugins_gpu_shares", 0, "1 to 128"),
        ("gb10_kubeconfig", "/etc", "this is a directory"),
        ("gb10_kubeconfig", "/no/such/place/", "this is a directory"),
        *((name, "", "Rename it to sglang_hf_token") for name in ("hf_token", "HUGGING_FACE_HUB_TOKEN")),
        ("ansible_port", 99999, "1 to 65535"),
        ("sglang_cache_dir", "jit", "such as /var/lib/gb10-jit-cache"),
        ("gb10_model_url", "huggingface.co", "https://huggingface.co"),
        ("multus_image", "ghcr.io/x/multus@sha256:abc", "64 hexadecimal digits"),
        ("gb10_sglang_image", "lmsysorg/sglang: latest", "not the name of an image"),
        ("gb10_sglang_image", "https://hub.example/sglang", "not the name of an image"),
        ("gb10_namespace", "My_NS", "such as gb10-serving"),
        ("gb10_image_pull_secrets", ["Registry"], "such as registry"),
        ("sglang_image_pull_secrets", ["-registry"], "such as registry"),
        ("sglang_image_pull_secrets", {"Name": "registry"}, "not of the type list"),
        ("sglang_scheduler", "KAI", "such as kai-scheduler"),
        ("sglang_priority_class", "a_b", "such as high-priority"),
        ("sglang_pod_labels", {"gb10.cluster/rank": "0"}, "choose a key of your own"),
        ("gateway_pod_annotations", {"k8s.v1.cni.cncf.io/networks": "x"}, "choose a key of your own"),
        ("sglang_pod_labels", {"example.com/team": "team a"}, "Longer texts belong in annotations"),
        ("sglang_pod_labels", {"a/b/c": "x"}, "Longer texts belong in annotations"),
        ("sglang_pod_labels", {"example.com/billed": True}, "Put it in quotes"),
        ("gb10_namespace", "", "such as gb10-serving"),
    ],
)
def test_an_invalid_value_is_refused_with_the_valid_ones(name: str, value: Any, told: str) -> None:
    (message,) = messages(**{name: value})
    assert told in message
    named = next(iter(value.items())) if isinstance(value, dict) else [value[0] if name.endswith("_secrets") else value]
    assert all(str(part) in message for part in named)


@pytest.mark.parametrize(
    "values",
    [
        {"gb10_fabric_mtu": "9000", "gb10_fabric_qos": "yes", "gb10_fabric_vf_count": "auto"},
        {"gb10_fabric_vf_count": 2, "gb10_sysfs_root": None, "k3s_version": "v1.36.5-rc1+k3s2"},
        {"sglang_memory_guard_percent": ["5", 3.5]},
        {"gb10_image_pull_secrets": ["registry.lan"], "sglang_scheduler": "", "sglang_runtime_class": ""},
        {"sglang_pod_labels": {"team": "", "kueue.x-k8s.io/queue-name": "a-b_c.d"}, "sglang_priority_class": "low"},
        {"sglang_pod_annotations": {"example.com/owner": "team a, floor 3"}},
        {"gb10_models_dir": "/srv", "device_plugins_gpu_shares": 1, "gb10_kubeconfig": "~/.kube/config"},
        {"gb10_models_dir": "", "k3s_api_host": "spark1.locale", "serving_plan_image": ""},
        {"node_tuning_swappiness": "", "gateway_image": "host:5000/a/b:v1"},
        {"multus_image": "ghcr.io/x/multus:v4@sha256:" + "0a" * 32},
        {"sglang_question": "an option of the entry point chat"},
        *({"gb10_kubeconfig": path} for path in ("~no.such.user/config", "~\0/config", f"/{300 * 'x'}/config")),
    ],
)
def test_values_in_the_forms_that_ansible_takes_pass(values: dict[str, Any]) -> None:
    assert messages(**values) == []


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        *((f"{name}_port", 1, 65535) for name in ("ansible", "gateway", "k3s_api", "models_share", "serving_plan")),
        ("nccl_verify_bandwidth_port", 1, 65535),
        ("serving_plan_rendezvous_port", 1, 65535),
        ("device_plugins_gpu_shares", 1, 128),
        ("models_streams", 1, 64),
        ("node_tuning_gpu_clock_mhz", 200, 5000),
        ("node_tuning_swappiness", 0, 200),
        ("sglang_startup_timeout", 60, 604800),
        ("sglang_memory_timeout", 0, 604800),
    ],
)
def test_a_number_may_have_its_limits_and_none_beyond(name: str, least: int, most: int) -> None:
    assert messages(**{name: least}) == messages(**{name: most}) == []
    beyond = [*messages(**{name: least - 1}), *messages(**{name: most + 1})]
    assert [f"{least} to {most}" in message for message in beyond] == [True, True]


def test_a_secret_is_not_shown() -> None:
    (message,) = messages(HF_TOKEN="hf_s3cret")
    assert "s3cret" not in message
    (message,) = messages(k3s_token=["s3cret"], gateway_api_key={"key": "s3cret"})[:1] or [""]
    assert "s3cret" not in message


def test_short_names_are_refused_in_an_inventory() -> None:
    (message,) = messages(profile="desktop")
    assert "Rename it to serving_plan_profile" in message
    assert messages({"profile": "glm-4.7"}, profile="glm-4.7") == []
    assert "Choose one of roce, socket" in messages({"transport": "tcp"}, transport="tcp")[0]


def test_one_host_is_named() -> None:
    (finding,) = check_variables(load_known(), {"a": {"gb10_node_id": 1}, "b": {"gb10_node_id": "x"}}, {})
    assert finding.where == "b"
    (finding,) = check_variables(load_known(), {"b": {"gb10_node_id": "x"}}, {})
    assert finding.where == "b"


def test_every_empty_or_missing_group_is_named() -> None:
    found = check_groups({"gb10_nodes": []}, ["gb10_servers", "gb10_nodes"])
    assert [finding.key for finding in found] == ["gb10_servers, gb10_nodes"]
    assert "in these groups" in found[0].reason
    assert "in this group" in check_groups({}, ["gb10_nodes"])[0].reason
    assert check_groups({"gb10_nodes": ["spark1"]}, ["gb10_nodes"]) == []
    found = check_groups({"gb10_nodes": ["spark1"]}, ["gb10_servers", "gb10_cluster", "gb10_nodes"])
    assert [(one.key, "with -i" in one.remedy) for one in found] == [("gb10_servers", False), ("gb10_cluster", False)]
    # The cluster is not needed, so nobody has to be in it.
    assert check_groups({"gb10_nodes": ["spark1"], "gb10_cluster": ["spark2"]}, ["gb10_nodes"]) == []


def test_a_host_outside_the_group_of_all_hosts_is_named() -> None:
    needed = ["gb10_servers", "gb10_nodes", "gb10_cluster"]
    groups = {"gb10_servers": ["control"], "gb10_nodes": ["spark1", "spark2"], "gb10_cluster": ["spark1"]}
    (finding,) = check_groups(groups, needed)
    assert (finding.rule, finding.reason.partition(":")[0]) == ("inventory.cluster", "control, spark2")
    groups["gb10_nodes"] = ["spark1"]
    assert check_groups(groups | {"gb10_cluster": ["control", "spark1"]}, needed) == []
    (finding,) = check_groups(groups | {"gb10_cluster": []}, needed)
    assert (finding.rule, finding.key) == ("inventory.group", "gb10_cluster")


EXISTING = {"gb10_kubernetes_provider": "existing", "gb10_kubeconfig": "/k", "gb10_kube_context": "theirs"}


def test_an_existing_cluster_must_be_named_once_for_all_hosts() -> None:
    assert check_provider({"spark1": EXISTING, "spark2": EXISTING}, "") == []
    assert check_provider({"spark1": {}}, "k3s") == []
    (finding,) = check_provider({"spark1": {"gb10_kubernetes_provider": "existing"}}, "")
    assert (finding.severity, finding.rule) == ("error", "variables.provider")
    assert "gb10_kubeconfig and gb10_kube_context must name the cluster" in finding.reason
    (finding,) = check_provider({"spark1": EXISTING, "spark2": EXISTING | {"gb10_kube_context": ""}}, "")
    assert "gb10_kube_context must name the cluster" in finding.reason and "gb10_kubeconfig" not in finding.reason
    (finding,) = check_provider({"spark1": EXISTING, "spark2": {}}, "")
    assert "existing: spark1; k3s: spark2" in finding.reason


@pytest.mark.parametrize(
    ("own", "group", "warned"),
    [(None, None, False), ([3, 2], [4, 3], True), ([4, 2], None, True), ([3, 2], None, False), (["x", 2], None, False)],
)
def test_earlyoom_ends_no_process_before_the_group_is_stopped(own: Any, group: Any, warned: bool) -> None:
    given = {"node_tuning_memory_guard_percent": own, "sglang_memory_guard_percent": group}
    hosts = {"spark1": {name: value for name, value in given.items() if value}, "spark2": {}}
    found = [(one.severity, one.rule) for one in check_guards(load_known(), hosts)]
    assert found == ([("warning", "variables.guards")] if warned else [])


@pytest.mark.parametrize("name", ["default", "kube-system", "models"])
def test_a_model_gets_no_namespace_of_kubernetes_itself_where_this_collection_runs_it(name: str) -> None:
    found = [(one.severity, one.rule, one.value) for one in check_provider({"spark1": {"gb10_namespace": name}}, "k3s")]
    assert found == ([] if name == "models" else [("error", "variables.namespace", name)])
    assert check_provider({"spark1": EXISTING | {"gb10_namespace": name}}, "") == []
    both = check_provider({"spark1": {"gb10_namespace": name}, "spark2": {"gb10_namespace": "kube-public"}}, "k3s")
    assert {one.value for one in both} == {name, "kube-public"} - {"models"}


def test_k3s_has_no_business_in_an_existing_cluster() -> None:
    (finding,) = check_provider(
        {"spark1": EXISTING | {"k3s_version": "v1.36.4+k3s1", "multus_image": "a", "multus_namespace": "b"}}, ""
    )
    assert (finding.severity, "nothing reads k3s_version, multus_image" in finding.reason) == ("warning", True)
    (finding,) = check_provider({"spark1": EXISTING}, "k3s")
    assert (finding.severity, "changes K3s itself" in finding.reason) == ("error", True)
    groups = ["gb10_servers", "gb10_nodes"]
    assert needed_groups({"spark1": EXISTING}, groups) == ["gb10_nodes"]
    assert needed_groups({"spark1": {}}, groups) == groups
    assert needed_groups({"spark1": {}, "spark2": EXISTING}, groups) == ["gb10_nodes"]


@pytest.mark.parametrize("strategy", ["linear", "debug", "free", "ansible.builtin.free", "host_pinned"])
def test_a_strategy_that_does_not_keep_the_hosts_together_is_refused(strategy: str) -> None:
    found = [(finding.rule, finding.value) for finding in check_strategy(strategy, "ansible.cfg")]
    assert found == ([] if strategy in ("linear", "debug") else [("variables.strategy", strategy)])


@pytest.mark.parametrize("name", ["Spark2", "spark_2", "-spark", "spark."])
def test_a_host_needs_a_name_that_kubernetes_takes(name: str) -> None:
    (finding,) = check_variables(load_known(), {name: {}, "spark1.lan": {}}, {})
    assert (finding.rule, finding.where) == ("inventory.host", name)
    assert check_variables(load_known(), {name: {"k3s_node_name": "spark-2"}}, {}) == []


@pytest.mark.parametrize(
    ("address", "rules"),
    [
        ("192.168.10.12", []),
        ("fd00::12", []),
        ("spark1", []),
        ("spark-1.example.org", []),
        ("192.168.10.312", ["inventory.address"]),
        ("192.168.10.12:22", ["inventory.address"]),
        ("", ["inventory.address"]),
    ],
)
def test_an_address_that_no_host_can_have_is_refused(address: str, rules: list[str]) -> None:
    found = check_variables(load_known(), {"spark1": {"ansible_host": address}}, {})
    assert [finding.rule for finding in found] == rules


def test_the_old_name_of_the_address_is_refused() -> None:
    (finding,) = check_variables(load_known(), {"spark1": {"ansible_ssh_host": "192.168.10.11"}}, {})
    assert (finding.where, finding.key) == ("spark1", "ansible_ssh_host")
    both = {"ansible_host": "192.168.10.11", "ansible_ssh_host": "192.168.10.11"}
    assert check_variables(load_known(), {"spark1": both}, {}) == []


@pytest.mark.parametrize(
    ("reason", "is_wrong"),
    [
        ("'models_root' is undefined", True),
        ("Attempting to decrypt but no vault secrets found.", True),
        ("'ansible_default_ipv4' is undefined", False),
        ("'hostvars' is undefined", False),
        ("A template was resolved to an Omit scalar.", False),
        ("'serving_plan_profile' is undefined", False),
        ("object of type 'dict' has no attribute 'env'", False),
    ],
)
def test_a_value_that_ansible_cannot_evaluate_is_wrong_unless_it_needs_facts_or_defaults(
    reason: str, is_wrong: bool
) -> None:
    value = unreadable(load_known(), reason)
    found = messages(gb10_models_dir=value)
    assert bool(found) is is_wrong
    assert all(f"gb10_models_dir: {reason.rstrip('.')}. Correct it" in message for message in found)


def test_a_name_without_a_value_is_wrong() -> None:
    (message,) = messages(k3s_version=Empty())
    assert "k3s_version: there is no value after this name" in message and "remove the line" in message
    values = ("x", 0, None, Empty(), Unreadable("?"))
    assert [usable(value) for value in values] == [True, True, False, False, False]


def test_a_value_for_the_whole_group_is_set_once() -> None:
    hosts = {"spark1": {"serving_plan_preset": "a"}, "spark2": {"serving_plan_preset": "b"}, "spark3": {}}
    (finding,) = check_variables(load_known(), hosts, {})
    assert "spark1: a; spark2: b" in str(finding) and "DaemonSet" not in str(finding)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ansible_become": "ture"}, "ansible_become = 'ture': this is not of the type bool. Write true or false."),
        ({"ansible_port": "ssh"}, "ansible_port = 'ssh': this is not of the type int. Write a whole number."),
        ({"ansible_hots": "192.168.10.11"}, "ansible_hots: nothing reads it. Did you mean ansible_host?"),
        ({"ansible_becom": True}, "ansible_becom: nothing reads it. Did you mean ansible_become?"),
    ],
)
def test_a_mistake_in_the_variables_of_the_connection_is_named(variables: dict[str, Any], told: str) -> None:
    (message,) = messages(**variables)
    assert told in message


def test_two_hosts_of_one_name_are_refused() -> None:
    (finding,) = check_variables(load_known(), {"spark1": {}, "spark2": {"k3s_node_name": "spark1"}}, {})
    assert (finding.where, finding.value) == ("spark2", "spark1")
    assert finding.reason.startswith("spark1 has the same name")


def test_a_misspelt_group_is_named() -> None:
    (finding,) = check_groups({"gb10-nodes": ["spark1"], "gb10_servers": ["spark1"]}, ["gb10_servers", "gb10_nodes"])
    assert (finding.key, finding.remedy) == ("gb10_nodes", "Rename gb10-nodes if it was meant.")
    found = check_groups({"gb10-nodes": ["a"], "gb10-servers": ["a"]}, ["gb10_servers", "gb10_nodes"])
    assert [finding.key for finding in found] == ["gb10_servers", "gb10_nodes"]
    # A group of this collection is not a misspelt other one.
    assert [finding.key for finding in check_groups({"gb10_nodes": ["a"]}, ["gb10_node"])] == ["gb10_node"]


def test_other_variables_of_ansible_are_not_misspelt() -> None:
    names = ("ansible_hostname", "ansible_ssh_user", "ansible_become_user", "ansible_password")
    assert messages(ansible_become="yes", ansible_port="22", **dict.fromkeys(names, "x")) == []


def test_a_tag_that_no_task_has_is_refused() -> None:
    known = ["fabric", "verify", "always"]
    assert check_tags({"--tags": ["fabric", "all"], "--skip-tags": ["verify", "never"]}, known) == []
    found = [str(finding) for finding in check_tags({"--tags": ["fabirc", "y"], "--skip-tags": ["x"]}, known)]
    assert "--tags = 'fabirc': no task of this playbook has this tag. Did you mean fabric?" in found[0]
    assert "--tags = 'y'" in found[1] and "Choose from all, always, fabric," in found[1]
    assert "--skip-tags = 'x'" in found[2]


@pytest.mark.parametrize("name", ["gb10_kubeconfig", "k3s_kubeconfig", "k3s_airgap_dir", "multus_cni_archive"])
def test_a_path_on_the_controller_is_the_same_for_all_tasks(name: str) -> None:
    (message,) = messages(**{name: "mine/file"})
    assert "the path is not absolute" in message
    assert messages(**{name: "~/mine/file"}) == messages(**{name: "/srv/mine/file"}) == []


def test_the_name_of_a_node_that_serves_is_that_of_its_host() -> None:
    variables = {"spark1": {"k3s_node_name": "gx10-a"}, "spark2": {}, "control": {"k3s_node_name": "server"}}
    (finding,) = check_node_names(variables, ["spark2", "spark1"])
    assert (finding.rule, finding.key, finding.where) == ("inventory.node", "k3s_node_name", "spark1")


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        ({}, True),
        ({"k3s_data_dir": "/opt/k3s"}, True),
        ({"k3s_data_dir": "/data"}, False),
        ({"k3s_data_dir": None}, False),
    ],
)
def test_the_directory_of_k3s_is_the_same_on_all_hosts(other: dict[str, Any], refused: bool) -> None:
    """A host that does not set it has the default; a value that needs facts is checked later."""
    found = check_variables(load_known(), {"spark1": {"k3s_data_dir": "/data"}, "spark2": other}, {})
    assert [finding.rule for finding in found if finding.key == "k3s_data_dir"] == ["variables.differs"] * refused


def test_a_name_that_no_label_can_have_is_refused() -> None:
    (finding,) = check_variables(load_known(), {"s" * 64: {}, "t" * 63: {}}, {})
    assert (finding.rule, finding.where) == ("inventory.host", "s" * 64)
    assert finding.reason.startswith("it has 64 characters")


def test_two_servers_are_refused_and_hosts_without_a_task_named() -> None:
    groups = {"gb10_servers": ["a", "b"], "gb10_nodes": ["b", "c"], "gb10_cluster": ["a", "b", "c"]}
    (finding,) = check_servers({"a": {}}, groups)
    assert (finding.rule, finding.value, finding.severity) == ("inventory.servers", ["a", "b"], "error")
    assert check_servers({"a": EXISTING}, groups) == []
    for servers in (["a"], ["a", "b", "c"]):
        assert check_servers({"a": {}}, groups | {"gb10_servers": servers, "gb10_nodes": ["a", "b", "c"]}) == []
    (finding,) = check_servers({}, groups | {"gb10_servers": ["a"]} | {"gb10_cluster": ["a", "b", "c", "d"]})
    assert (finding.rule, finding.value, finding.severity) == ("inventory.unused", ["d"], "warning")


@pytest.mark.parametrize(
    ("values", "key", "other"),
    [
        ({"models_share_port": 6443}, "models_share_port", "k3s_api_port"),
        ({"k3s_api_port": 10250}, "k3s_api_port", "the kubelet"),
        ({"models_share_port": "22"}, "models_share_port", "ssh"),
        ({"serving_plan_port": 20000}, "serving_plan_rendezvous_port", "serving_plan_port"),
        (
            {"serving_plan_port": 19998, "nccl_verify_bandwidth_port": 21000},
            "serving_plan_rendezvous_port",
            "the metrics of the transport gate",
        ),
        ({"serving_plan_port": 19997}, "serving_plan_rendezvous_port", "the metrics of the fallback"),
        ({"nccl_verify_bandwidth_port": 20000}, "nccl_verify_bandwidth_port", "serving_plan_rendezvous_port"),
        ({"gateway_port": 29000}, "gateway_port", "the gateway's metrics"),
    ],
)
def test_ports_that_collide_are_named_once(values: dict[str, Any], key: str, other: str) -> None:
    (finding,) = check_ports(load_known(), {"spark1": values, "spark2": values})
    assert (finding.rule, finding.key, finding.severity) == ("variables.port", key, "error")
    assert finding.reason.startswith(f"{other} has the same port")


def test_each_port_of_the_host_and_each_collision_is_named() -> None:
    ports = [22, 2379, 2380, 5001, 6444, 10010, 10250, 10256, 10257, 10258, 10259]
    hosts = {str(port): {"models_share_port": port, "gateway_port": 29000} for port in ports}
    found = [(finding.key, finding.value) for finding in check_ports(load_known(), hosts)]
    assert found == [("models_share_port", 22), ("gateway_port", 29000), *(("models_share_port", n) for n in ports[1:])]


def test_other_ports_do_not_collide() -> None:
    free = {"gateway_port": 30000, "serving_plan_port": 30000, "models_share_port": 7421, "k3s_api_port": "x"}
    assert check_ports(load_known(), {"spark1": {}, "spark2": free}) == []


@pytest.mark.parametrize("name", ["gb10_servers", "gb10_nodes", "gb10_cluster"])
def test_a_missing_group_of_an_inventory_with_hosts_comes_with_the_lines_to_add(name: str) -> None:
    groups = {"gb10_cluster": ["spark1"], "gb10_servers": ["spark1"], "gb10_nodes": ["spark1"], name: []}
    (finding,) = check_groups(groups, ["gb10_servers", "gb10_nodes", "gb10_cluster"])
    assert (finding.rule, finding.key) == ("inventory.group", name)
    assert "-i" not in finding.remedy
    assert (f"{name}: {{hosts: {{spark1" in finding.remedy) is (name != "gb10_cluster")


def test_several_wrong_entries_of_a_list_name_their_host_once() -> None:
    variables = {"spark1": {"gb10_fabric_rails": ["a", "b"]}, "spark2": {"gb10_fabric_rails": ["a", "b"]}}
    assert {finding.where for finding in check_variables(load_known(), variables, {})} == {"all hosts"}
