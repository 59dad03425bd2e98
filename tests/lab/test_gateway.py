# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test two groups of two nodes behind SGLang's real Model Gateway: key, TLS, spread, a group that leaves and joins.

The gateway is the published package; the groups are the lab's simulated SGLang on real Kubernetes.
"""

import json
import re
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gatewayimage import NAME, gateway_image
from labcommand import LABCTL, LabCommand, changed
from sitecommand import Site, is_ready

COVERS = ("roles/gateway", "playbooks/gateway.yml", "plugins/action/gateway_objects.py")

LOAD = Path(__file__).parent / "fixtures" / "gateway_load.py"
TWO = {"topology": {"nodes": 2, "tp": 2}}
# Both groups have two ranks, on the same two nodes with shared GPUs, because a lab of four nodes takes twice as long.
NODES = ["spark1", "spark2"]
GROUPS = {"one": 0, "two": 1}
KEY = secrets.token_hex(16)
FRONT = {"gateway_api_key": KEY, "gateway_tls_secret": "front", "gateway_service_type": "NodePort"}
ONLY_GATEWAY = [{"podSelector": {"matchLabels": {"gb10.cluster/gateway": "true"}}}]
OURS = ("-l", "app.kubernetes.io/name=gb10-gateway")


def serve(site: Site, name: str) -> str:
    return site.play(
        "serve", instance=name, vf_index=GROUPS[name], serving_plan_nodes=NODES, serving_plan_overrides=TWO
    )


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand], tmp_path_factory: pytest.TempPathFactory) -> Site:
    scratch = tmp_path_factory.mktemp("gateway")
    values = {"gateway_image": NAME, "gateway_drain_timeout": 60, "sglang_allow_from": ONLY_GATEWAY}
    made = Site.deployed(make_lab(), nodes=len(NODES), device_plugins_gpu_shares=2, **values)
    nodes = [node["metadata"]["name"] for node in made.get("nodes")["items"]]
    made.import_image(gateway_image(scratch), nodes)
    for name in GROUPS:
        serve(made, name)
    openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=gb10")
    subprocess.run([*openssl, "-keyout", scratch / "k", "-out", scratch / "c"], check=True, capture_output=True)
    made.kubectl("create", "secret", "tls", "front", f"--cert={scratch / 'c'}", f"--key={scratch / 'k'}")
    return made


def door(site: Site) -> str:
    node = {a["type"]: a["address"] for a in site.get("node", "spark1")["status"]["addresses"]}["InternalIP"]
    return f"{node}:{site.get('service', 'gb10-gateway')['spec']['ports'][0]['nodePort']}"


def status(site: Site, url: str, *words: str) -> str:
    ask = ("curl", "-sk", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json")
    return site.lab.run(*ask, *words, url).stdout


def workers(site: Site) -> list[str]:
    (container,) = site.get("deployment", "gb10-gateway")["spec"]["template"]["spec"]["containers"]
    return [re.sub(r"http://(\w+)\..*", r"\1", url) for url in container["args"][1:]]


def answered(site: Site) -> dict[str, float]:
    """Return how many requests each group has answered, from the gateway's own metrics."""
    read = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:29000/metrics').read().decode())"
    metrics = site.kubectl("exec", "deploy/gb10-gateway", "--", "python3", "-c", read)
    found = re.findall(r"^smg_worker_cb_outcomes_total\{(.*)\} (\S+)$", metrics, re.MULTILINE)
    good = [(labels, float(count)) for labels, count in found if "success" in labels]
    return {name: sum(count for labels, count in good if f"http://{name}." in labels) for name in GROUPS}


class Load:
    """Streams of requests that run while something else happens."""

    def __init__(self, site: Site, scratch: Path, streams: int) -> None:
        self.end, key = scratch / "end", scratch / "key"
        key.write_text(KEY)
        words = [LABCTL, "run", "--", "python3", LOAD, f"https://{door(site)}", key, str(streams), self.end]
        self.process = subprocess.Popen(words, env=site.lab.environment, stdout=subprocess.PIPE, text=True)

    def stop(self) -> tuple[int, list[str]]:
        """Return the number of requests, and what was wrong with those that failed."""
        self.end.touch()
        result = json.loads(self.process.communicate(timeout=120)[0])
        return result["requests"], result["failed"]


def test_the_gateway_has_key_and_certificate_and_nothing_shows_the_key(site: Site) -> None:
    output = site.play("gateway", **FRONT)
    # The nodes learn the address of a first gateway a moment after it is ready.
    deadline = time.monotonic() + 20
    while status(site, f"https://{door(site)}/health") != "200" and time.monotonic() < deadline:
        time.sleep(1)
    chat = f"https://{door(site)}/v1/chat/completions"
    # Without max_tokens the simulated server generates for longer than curl waits.
    body = ("-d", '{"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}')
    # The gateway refuses a request without reading its body; curl then sometimes loses the answer, so send none.
    assert (
        status(site, chat, "-X", "POST") == status(site, chat, "-X", "POST", "-H", "Authorization: Bearer x") == "401"
    )
    bearer = ("-H", f"Authorization: Bearer {KEY}")
    assert status(site, chat, *body, *bearer) == "200"
    assert status(site, chat.replace("https", "http"), *body, *bearer) == "000"
    assert status(site, f"https://{door(site)}/health") == "200"
    shown = site.kubectl("get", "pods,deployments,replicasets,configmaps", "-o", "yaml") + output
    shown += site.kubectl("logs", "deploy/gb10-gateway")
    arguments = [site.lab.shell(node, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '") for node in NODES]
    assert KEY not in shown + "".join(arguments)
    assert workers(site) == ["one", "two"]


def test_requests_spread_and_a_group_leaves_without_a_failed_request(site: Site, tmp_path: Path) -> None:
    load = Load(site, tmp_path, 12)
    time.sleep(15)
    spread = answered(site)
    site.play("serve_stop", instance="two")
    time.sleep(5)
    requests, failed = load.stop()
    print(f"answered by group: {spread}; requests {requests}, failed {failed}")
    assert min(spread.values()) > 5
    assert failed == []
    assert requests > sum(spread.values())
    assert workers(site) == ["one"]
    assert site.pods("two") == []


def test_a_group_joins_under_load_without_a_failed_request_and_a_second_run_changes_nothing(
    site: Site, tmp_path: Path
) -> None:
    load = Load(site, tmp_path, 12)
    serve(site, "two")
    time.sleep(10)
    requests, failed = load.stop()
    print(f"requests while a group joined: {requests}, failed {failed}")
    assert failed == []
    assert answered(site)["two"] > 0
    assert workers(site) == ["one", "two"]
    assert changed(site.play("gateway", **FRONT)) == 0


def gateways(site: Site) -> set[str]:
    """Return the ids of the gateway's pods that are ready."""
    return {pod["metadata"]["uid"] for pod in site.get("pods", *OURS)["items"] if is_ready(pod)}


def test_a_gateway_that_is_killed_answers_again_within_half_a_minute(site: Site, tmp_path: Path) -> None:
    killed = gateways(site)
    load = Load(site, tmp_path, 12)
    time.sleep(3)
    site.kubectl("delete", "pod", *OURS, "--grace-period=0", "--force")
    started = time.monotonic()
    while not gateways(site) - killed and time.monotonic() - started < 60:
        time.sleep(0.5)
    back = time.monotonic() - started
    around, lost = load.stop()
    (tmp_path / "after").mkdir()
    after = Load(site, tmp_path / "after", 4)
    time.sleep(5)
    requests, failed = after.stop()
    print(f"back after {back:.1f} s; {len(lost)} of {around} requests failed around it; after it {requests}, {failed}")
    assert back < 30
    assert len(killed) == len(gateways(site)) == 1
    assert requests > 4
    assert failed == []


def test_nobody_passes_by_the_gateway(site: Site) -> None:
    ask = "import urllib.request as u; u.urlopen('http://one.gb10-serving.svc:30000/health', timeout=5)"
    site.kubectl("exec", "deploy/gb10-gateway", "--", "python3", "-c", ask)
    refused = site.ask("exec", "two-1-0", "-c", "sglang", "--", "python3", "-c", ask)
    assert refused.returncode != 0
    assert "timed out" in refused.stderr or "refused" in refused.stderr


def test_a_group_that_is_not_proven_gets_no_requests(site: Site, tmp_path: Path) -> None:
    before = answered(site)["two"]
    site.kubectl("delete", "pod", "one-1-0", "--grace-period=0", "--force")
    # The kubelet and the gate need a moment to close the Service.
    deadline = time.monotonic() + 60
    while site.get("endpoints", "one").get("subsets", [{}])[0].get("addresses") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not is_ready(site.pods("one")[0])
    load = Load(site, tmp_path, 2)
    time.sleep(4)
    _requests, failed = load.stop()
    assert failed == []
    assert answered(site)["two"] > before


def test_removing_the_gateway_keeps_the_groups(site: Site) -> None:
    assert changed(site.play("gateway", gateway_state="absent")) > 0
    # The pod still finishes its requests.
    assert site.kubectl("get", "deployments,services,cm,secrets,networkpolicies", *OURS, "-o", "name") == ""
    assert len(site.pods("one")) == len(site.pods("two")) == 2
    assert changed(site.play("gateway", gateway_state="absent")) == 0
