# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what `make demo` does from untouched hosts to the verdict, and its faults, with the example of two nodes.

One lab, in the order of this file. test_documented.py and test_installed.py deploy the four nodes of `make demo`.
"""

import json
import re
from collections.abc import Callable

import pytest
from labcommand import LabCommand, recap
from sitecommand import Site

COVERS = (
    "inventory/2x-gb10-direct",
    "lab/demo",
    "lab/demo.yml",
    "lab/faults",
    "lab/sglang",
    "playbooks/site.yml",
    "roles/summary",
    "roles/preflight",
    "plugins/plugin_utils/_node",
    "plugins/module_utils/_common",
)

SPARKS = ["spark1", "spark2"]
PROFILE = "qwen3.8-flash-next"  # of the example
# The lab has no image of the development release that the example's own preset was measured with.
PRESET = {"preset": "current"}


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., LabCommand]) -> LabCommand:
    made = make_lab("2x-gb10-direct", "lab")
    made.up(nodes=2, kubernetes=True)
    return made


@pytest.fixture(scope="module")
def site(lab: LabCommand) -> Site:
    return Site(
        lab, group=PROFILE.replace(".", "-"), values=PRESET, before={host: lab.fingerprint(host) for host in SPARKS}
    )


def test_check_mode_runs_to_its_end_on_untouched_hosts_and_changes_nothing(site: Site) -> None:
    site.play("site", "--check", "--diff")
    left = {host: site.left(host, "^$") for host in SPARKS}
    assert not any(left.values()), json.dumps(left, indent=2)


def test_kubernetes_without_the_fabric_is_refused_before_anything_is_installed(site: Site) -> None:
    output = site.play("kubernetes", check=False)
    for host in SPARKS:
        assert f"fatal: [{host}]" in output
    assert "enp1s0f0np0: sriov_numvfs = 2" in output
    assert "Run playbooks/fabric.yml first" in " ".join(output.split())
    assert not any(site.left(host, "^$") for host in SPARKS)


def test_site_ends_with_every_rank_on_rdma_over_both_rails(site: Site) -> None:
    site.play("site")
    verdict = json.loads(next(site.lab.results.glob("**/transport.json")).read_text())
    assert verdict["transport_class"] == "rdma"
    assert verdict["satisfied"] is True
    assert sorted(r["rank"] for r in verdict["ranks"]) == [0, 1]
    for rank in verdict["ranks"]:
        assert set(rank["channels"]["IB"]) == {"0", "1"}


def test_a_second_run_changes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        counts = recap(site.lab.timed("site", **site.values), "changed")
    assert set(SPARKS) < set(counts)
    assert counts == dict.fromkeys(counts, 0)


# Prints the status of each request to each address, as JSON.
ASK = """
import http.client, json, sys
def ask(to, method, path):
    connection = http.client.HTTPConnection(to, 30000, timeout=10)
    connection.request(method, path)
    return connection.getresponse().status
requests = [("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/flush_cache"), ("POST", "/start_profile")]
print(json.dumps([[ask(to, *each) for each in requests] for to in sys.argv[1:]]))
"""


def test_a_client_can_use_the_server_but_not_administer_it_and_a_vf_answers_nothing(site: Site) -> None:
    head, other = site.pods()[:2]
    networks = json.loads(head["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    vfs = [network["ips"][0].partition("/")[0] for network in networks]
    to = [head["status"]["podIP"], f"{site.group}.gb10-serving", *vfs]
    name = other["metadata"]["name"]
    asked = json.loads(site.kubectl("exec", name, "-c", "sglang", "--", "python3", "-c", ASK, *to))
    client, nobody = [200, 200, 403, 403], [403, 403, 403, 403]
    assert asked == [client, client, nobody, nobody]
    assert json.loads(site.in_head("python3", "-c", ASK, "127.0.0.1")) == [[200, 200, 200, 404]]


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("unprivileged", "/dev/infiniband", "gb10_rdma_mode"),
        ("no-vf-address", "Network is unreachable", "NCCL_IB_GID_INDEX"),
        # last: this fault deletes a NAD that the fault before it changed
        ("missing-nad", "gb10-rail1-vf0", "playbooks/kubernetes.yml"),
    ],
)
def test_a_fault_ends_the_run_with_rank_cause_and_remedy(site: Site, fault: str, cause: str, remedy: str) -> None:
    site.play("serve_stop", profile=PROFILE)
    said = site.play("lab/serve_with_fault.yml", check=False, lab_fault=fault)
    # Ansible wraps long messages, so compare them without line breaks.
    message = " ".join(said[said.rindex("fatal:") :].split())
    assert re.search(r"rank:? \d", message), message
    assert cause in message, message
    assert remedy in message, message
    # The last screen says it all, once.
    screen = said.rstrip().rpartition("ignored=")[2].splitlines()[1:]
    assert len([line for line in screen if line]) <= 25, screen
    assert " ".join(screen).count(remedy) == 1, screen
    if fault == "missing-nad":  # a task refuses it before there is a group, so there is no line of a log
        assert " ".join(screen).count(cause) == 1, screen
        assert max(map(len, screen)) <= 100, screen


def test_reset_leaves_nothing(site: Site) -> None:
    site.play("reset", k3s_reset_confirm="yes")
    # containerd creates /opt/containerd, and K3s leaves packet forwarding on until the next boot
    left = {host: site.left(host, r"^/opt/containerd|^setting .* forwarding") for host in SPARKS}
    assert not any(left.values()), json.dumps(left, indent=2)
