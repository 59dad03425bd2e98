# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an image is pulled once, pinned on first use, and refused when it differs."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import image_pull
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
Json = dict[str, Any]
REPO = "docker.io/lmsysorg/sglang"
TAG = f"{REPO}:v0.5.14"
OLD, NEW = "sha256:0ld", "sha256:4e3"


class Cluster:
    """Nodes, at first two. ``registry`` has the image id that a pod gets on each node, or None during the pull."""

    hosts: list[str]
    created: list[str]
    registry: dict[str, str | None]
    held: dict[str, list[str]]
    record: dict[str, str]
    made: dict[str, Json]
    deleted: list[str]

    def __init__(self, _kubeconfig: str, _context: str) -> None:
        pass

    secret: bool

    def nodes(self) -> list[Json]:
        if self.secret:
            raise image_pull.ClusterError("can't list the nodes (403: Forbidden)", 403)
        names = {host: self.held.get(host, []) for host in self.hosts}
        return [{"metadata": {"name": host}, "status": {"images": [{"names": held}]}} for host, held in names.items()]

    def objects(self, _resource: str, _namespace: str, name: str) -> list[Json]:
        if name == "hidden":
            raise image_pull.ClusterError("can't read v1/secrets hidden (403: Forbidden)", 403)
        return [{"metadata": {"name": name}}] if name in ("registry", "low") else []

    def config_map(self, _namespace: str, _name: str) -> dict[str, str]:
        return self.record

    def add_to_config_map(self, _namespace: str, _name: str, data: dict[str, str]) -> None:
        self.record.update(data)

    def pods(self, _namespace: str, selector: str) -> list[Json]:
        chosen = [
            p
            for p in self.made.values()
            if selector == "gb10.cluster/pull=" + p["metadata"]["labels"]["gb10.cluster/pull"]
        ]
        for pod in chosen:
            image = self.registry[pod["spec"]["nodeSelector"]["kubernetes.io/hostname"]]
            pod["metadata"]["uid"] = pod["metadata"]["name"]
            waits = {"reason": "ImagePullBackOff", "message": image} if " " in (image or "") else {}
            own = {"imageID": "" if waits else image or "", "state": {"waiting": waits}}
            pod["status"] = {"phase": "Pending", "containerStatuses": [own]}
        return chosen

    def create_pod(self, _namespace: str, pod: Json) -> None:
        self.made[pod["metadata"]["name"]] = pod
        self.created.append(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"])

    def delete_pod(self, _namespace: str, name: str) -> None:
        self.deleted.append(name)
        del self.made[name]

    def events(self, _namespace: str) -> list[Json]:
        return [
            {
                "involvedObject": {"kind": "Pod", "name": name, "uid": name},
                "type": "Warning",
                "reason": "Failed",
                "message": "Failed to pull image: manifest unknown",
            }
            for name in self.made
        ]

    def warnings(self, namespace: str) -> list[Json]:
        return self.events(namespace)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, simulated_clock: None) -> None:
    monkeypatch.setattr(image_pull, "Cluster", Cluster)
    fresh: dict[str, Any] = {"secret": False, "held": {}, "record": {}, "made": {}, "deleted": [], "created": []}
    fresh["hosts"] = ["spark1", "spark2"]
    for name, value in fresh.items():
        monkeypatch.setattr(Cluster, name, value, raising=False)
    pulled = dict.fromkeys(("spark1", "spark2"), f"{REPO}@{OLD}")
    monkeypatch.setattr(Cluster, "registry", pulled, raising=False)


def pull(capsys: Capture, image: str = TAG, **more: Any) -> tuple[int, Json]:
    return run_module(
        image_pull, capsys, **{"kubeconfig": "/k", "context": "gb10", "namespace": "models", "image": image} | more
    )


def test_the_first_use_pins_the_digest_and_a_second_run_changes_nothing(capsys: Capture) -> None:
    status, result = pull(capsys)
    assert (status, result["changed"], result["image"]) == (0, True, f"{TAG}@{OLD}")
    assert Cluster.record == {"docker.io_lmsysorg_sglang_v0.5.14": OLD}
    assert (len(Cluster.deleted), Cluster.made) == (2, {})
    Cluster.held = {host: [f"{REPO}@{OLD}"] for host in ("spark1", "spark2")}
    status, result = pull(capsys)
    assert (status, result["changed"], result["image"], len(Cluster.deleted)) == (0, False, f"{TAG}@{OLD}", 2)


def test_a_later_node_pulls_the_recorded_digest_not_the_tag(capsys: Capture) -> None:
    Cluster.record["docker.io_lmsysorg_sglang_v0.5.14"] = NEW
    Cluster.registry["spark2"] = None
    status, result = pull(capsys)
    assert (status, result["done"]) == (0, False)
    assert {pod["spec"]["containers"][0]["image"] for pod in Cluster.made.values()} == {f"{TAG}@{NEW}"}


def test_another_digest_is_refused_with_both_values_and_the_command_that_accepts_it(capsys: Capture) -> None:
    Cluster.record["docker.io_lmsysorg_sglang_v0.5.14"] = OLD
    Cluster.held = {"spark1": [f"{REPO}@{OLD}", TAG], "spark2": [f"{REPO}@{NEW}", TAG]}
    status, result = pull(capsys)
    assert status == 1
    assert f"{OLD} was recorded on first use, but spark2 has {NEW}" in result["msg"]
    assert '-p \'{"data":{"docker.io_lmsysorg_sglang_v0.5.14":null}}\'' in result["msg"]
    assert Cluster.record == {"docker.io_lmsysorg_sglang_v0.5.14": OLD}


def test_nodes_that_differ_on_first_use_are_refused_and_nothing_is_recorded(capsys: Capture) -> None:
    Cluster.registry["spark2"] = "sha256:1d"
    status, result = pull(capsys)
    assert (status, Cluster.record, Cluster.made) == (1, {}, {})
    assert f"{OLD} is on spark1, but spark2 has id:sha256:1d" in result["msg"]
    assert "kubectl" not in result["msg"]


def test_an_imported_image_is_compared_by_its_id(capsys: Capture) -> None:
    Cluster.registry.update(dict.fromkeys(("spark1", "spark2"), "sha256:1d"))
    status, result = pull(capsys)
    assert (status, result["image"], result["digest"]) == (0, TAG, "id:sha256:1d")
    assert pull(capsys)[1]["changed"] is False


def test_a_slice_shows_what_each_node_waits_for(capsys: Capture) -> None:
    Cluster.registry["spark2"] = None
    status, result = pull(capsys)
    assert (status, result["done"]) == (0, False)
    assert result["msg"].startswith(f"{TAG} is on 1 of 2 nodes after 20 s")
    assert "pod gb10-pull-" in result["msg"]
    assert "(last event Failed: Failed to pull image: manifest unknown)" in result["msg"]
    assert result["progress"] == {"waited": 20}


def test_a_time_out_names_the_event_and_leaves_no_pod(capsys: Capture) -> None:
    Cluster.registry["spark2"] = None
    status, result = pull(capsys, timeout=10)
    assert (status, Cluster.made) == (1, {})
    assert result["msg"].count("manifest unknown") == 1
    assert "reaches the registry" in result["msg"]


def test_an_explicit_digest_is_pulled_and_not_recorded(capsys: Capture) -> None:
    status, result = pull(capsys, f"{TAG}@{OLD}")
    assert (status, result["changed"], result["image"], Cluster.record) == (0, False, f"{TAG}@{OLD}", {})


def test_an_unknown_node_is_named(capsys: Capture) -> None:
    assert "no node spark9" in pull(capsys, nodes=["spark9"])[1]["msg"]


def test_pods_are_restricted_and_use_the_host_s_network_only_where_asked(capsys: Capture) -> None:
    Cluster.registry["spark2"] = None
    pull(capsys)
    for pod in Cluster.made.values():
        assert "hostNetwork" not in pod["spec"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    Cluster.made = {}
    pull(capsys, host_network=True)
    assert all(pod["spec"]["hostNetwork"] for pod in Cluster.made.values())


def test_named_nodes_need_no_right_to_list_them(capsys: Capture) -> None:
    Cluster.secret = True
    status, result = pull(capsys, nodes=["spark1", "spark2"])
    assert (status, result["image"]) == (0, f"{TAG}@{OLD}")
    status, result = pull(capsys)
    assert (status, "403: Forbidden" in result["msg"]) == (1, True)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four nodes that pull for longer than a slice."""
    hosts = ["spark1", "spark2", "spark3", "spark4"]
    monkeypatch.setattr(Cluster, "hosts", hosts)
    monkeypatch.setattr(Cluster, "registry", dict.fromkeys(hosts))
    return hosts


def test_with_one_first_the_others_pull_once_the_first_node_has_the_image(capsys: Capture, four: list[str]) -> None:
    for _slice in range(2):
        status, result = pull(capsys, one_first=True)
        assert (status, result["done"], Cluster.created) == (0, False, ["spark1"])
        assert result["msg"].splitlines()[0] == f"{TAG} is on 0 of 4 nodes after 20 s"
        assert result["msg"].splitlines()[-1] == "  spark2, spark3 and spark4 wait until spark1 has the image"
    Cluster.registry["spark1"] = f"{REPO}@{OLD}"
    status, result = pull(capsys, one_first=True)
    assert (status, result["done"], Cluster.created) == (0, False, four)
    assert "until" not in result["msg"]
    Cluster.registry.update(dict.fromkeys(four, f"{REPO}@{OLD}"))
    status, result = pull(capsys, one_first=True)
    assert (status, result["done"], Cluster.created, Cluster.made) == (0, True, four, {})


def test_the_first_of_the_named_nodes_pulls_first(capsys: Capture, four: list[str]) -> None:
    result = pull(capsys, one_first=True, nodes=["spark3", "spark2"])[1]
    assert Cluster.created == ["spark3"]
    assert result["msg"].splitlines()[-1] == "  spark2 waits until spark3 has the image"


@pytest.mark.parametrize("named", [["spark1", "spark2", "spark3"], ["spark1", "spark2"]])
def test_no_node_waits_if_any_node_of_the_cluster_has_the_image(
    capsys: Capture, four: list[str], named: list[str]
) -> None:
    Cluster.held["spark3"] = [f"{REPO}@{OLD}", TAG]
    pull(capsys, one_first=True, nodes=named)
    assert Cluster.created == ["spark1", "spark2"]


def test_a_node_with_another_digest_than_the_recorded_one_cannot_give_it(capsys: Capture, four: list[str]) -> None:
    Cluster.record["docker.io_lmsysorg_sglang_v0.5.14"] = OLD
    Cluster.held["spark1"] = [f"{REPO}@{NEW}", TAG]
    result = pull(capsys, one_first=True)[1]
    assert Cluster.created == ["spark2"]
    assert "spark3 and spark4 wait until spark2 has the image" in result["msg"]


def test_the_pods_of_an_interrupted_run_pull_first(capsys: Capture, four: list[str]) -> None:
    pull(capsys, nodes=["spark2", "spark4"])
    result = pull(capsys, one_first=True)[1]
    assert Cluster.created == ["spark2", "spark4"]
    assert "spark1 and spark3 wait until spark2 or spark4 has the image" in result["msg"]


def test_without_the_right_to_list_nodes_the_pod_of_the_first_tells_that_it_has_the_image(
    capsys: Capture, four: list[str]
) -> None:
    Cluster.secret = True
    pull(capsys, one_first=True, nodes=four)
    assert Cluster.created == ["spark1"]
    Cluster.registry["spark1"] = f"{REPO}@{OLD}"
    pull(capsys, one_first=True, nodes=four)
    assert Cluster.created == four


def test_a_first_node_that_cannot_pull_ends_the_wait_with_its_reason(capsys: Capture, four: list[str]) -> None:
    status, result = pull(capsys, one_first=True, timeout=10)
    assert (status, Cluster.created, Cluster.made) == (1, ["spark1"], {})
    assert f"{TAG} is on 0 of 4 nodes after 10 s" in result["msg"]
    assert result["msg"].count("manifest unknown") == 1
    assert "spark2, spark3 and spark4 wait until spark1 has the image" in result["msg"]
    assert "reaches the registry" in result["msg"]


@pytest.mark.parametrize(
    ("second", "waited"),
    [("unexpected status: 401 Unauthorized", "0 s"), ("lookup r: no such host", "10 s"), (None, "10 s")],
)
def test_a_registry_that_refuses_all_nodes_ends_the_wait(capsys: Capture, second: str | None, waited: str) -> None:
    """A node that is not refused may still get the image."""
    Cluster.registry = {"spark1": "unexpected status: 401 Unauthorized", "spark2": second}
    status, result = pull(capsys, timeout=10)
    assert (status, Cluster.made, result["changed"]) == (1, {}, False)
    assert f"{TAG} is on 0 of 2 nodes after {waited}" in result["msg"]
    assert "name that Secret in gb10_image_pull_secrets" in result["msg"]


def test_check_mode_pulls_nothing_and_by_default_all_nodes_pull_at_once(capsys: Capture, four: list[str]) -> None:
    for one_first in (False, True):
        status, result = pull(capsys, one_first=one_first, check=True)
        assert (status, result["changed"], result["image"], Cluster.created) == (0, False, TAG, [])
    result = pull(capsys)[1]
    assert (Cluster.created, "until" in result["msg"]) == (four, False)


@pytest.mark.parametrize("check", [False, True])
def test_a_secret_or_a_priority_class_that_is_missing_is_named_before_anything_changes(
    capsys: Capture, check: bool
) -> None:
    owner = {"image_pull_secrets": ["registry", "other", "hidden"]}
    # A node that has the image would still be asked for the Secret, by the kubelet of Kubernetes 1.35.
    Cluster.held = {host: [f"{REPO}@{OLD}"] for host in ("spark1", "spark2")}
    status, result = pull(capsys, owner=owner, check=check)
    assert (status, Cluster.created, Cluster.record) == (1, [], {})
    assert result["msg"].startswith("Namespace models has no Secret other, which gb10_image_pull_secrets names")
    assert "kubectl --kubeconfig /k --context gb10 -n models create secret docker-registry other" in result["msg"]
    message = pull(capsys, owner={"priority_class": "urgent"}, check=check)[1]["msg"]
    assert message.startswith(
        "The cluster has no PriorityClass urgent, so it would refuse the pods; nothing was changed."
    )
    assert "failed" not in pull(capsys, owner={"priority_class": "hidden"}, check=check)[1]


def test_the_pods_that_pull_are_as_the_owner_of_the_cluster_wants_them(capsys: Capture) -> None:
    Cluster.registry["spark2"] = None
    labels = {"team": "a", "gb10.cluster/pull": "other"}
    pull(capsys, owner={"image_pull_secrets": ["registry", "hidden"], "pod_labels": labels, "priority_class": "low"})
    assert len(Cluster.made) == 2
    for pod in Cluster.made.values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}, {"name": "hidden"}]
        assert (pod["spec"]["priorityClassName"], pod["metadata"]["labels"]["team"]) == ("low", "a")
        assert pod["metadata"]["labels"]["gb10.cluster/pull"] != "other"


LISTED = """
Welcome to this host, which prints more than it should
REF TYPE DIGEST SIZE PLATFORMS LABELS
{tag} application/vnd.docker.distribution.manifest.v2+json sha256:m1 65.1 MiB linux/amd64 -
docker.io/other:1 application/vnd.docker.distribution.manifest.v2+json sha256:m2 65.1 MiB linux/amd64 -
{first} application/vnd.docker.distribution.manifest.v2+json sha256:m1 65.1 MiB linux/amd64 -
{second} application/vnd.docker.distribution.manifest.v2+json sha256:m2 65.1 MiB linux/amd64 -
"""
IDS = {"tag": TAG, "first": "sha256:" + "1" * 64, "second": "sha256:" + "2" * 64}


def test_a_node_that_lists_an_imported_image_gets_no_pod(capsys: Capture) -> None:
    listed = LISTED.format(**IDS)
    status, same = pull(capsys, listings={"spark1": listed, "spark2": listed})
    assert (status, same["digest"], same["image"]) == (0, f"id:{IDS['first']}", TAG)
    # Somebody has imported another image with this name on one node.
    other = listed.replace(
        f"{TAG} application/vnd.docker.distribution.manifest.v2+json sha256:m1", f"{TAG} x sha256:m2"
    )
    status, refused = pull(capsys, listings={"spark1": listed, "spark2": other})
    assert status == 1
    assert f"spark2 has id:{IDS['second']}" in refused["msg"]
    assert Cluster.created == []


@pytest.mark.parametrize(
    ("listed", "policy"),
    [
        ("", "IfNotPresent"),
        (LISTED.format(**{**IDS, "tag": f"{TAG}-other"}), "IfNotPresent"),
        (LISTED.format(**{**IDS, "first": "sha256:1"}), "IfNotPresent"),
        (LISTED.format(**IDS) + f"sha256:{'3' * 64} x sha256:m1", "IfNotPresent"),
        (LISTED.format(**IDS) + f"{TAG} x sha256:m2", "IfNotPresent"),
        (LISTED.format(**IDS), "Always"),
    ],
    ids=["nothing", "another name", "no id", "two ids", "two manifests", "always pulled"],
)
def test_a_listing_that_does_not_name_one_image_leaves_the_question_to_a_pod(
    capsys: Capture, listed: str, policy: str
) -> None:
    pull(capsys, listings={"spark1": listed, "spark2": listed}, pull_policy=policy)
    assert Cluster.created == ["spark1", "spark2"]
