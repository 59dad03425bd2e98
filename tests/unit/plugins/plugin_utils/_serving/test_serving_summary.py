# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the summary: values that were read, and dashes for values that were not."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe, outdated
from serving_samples import plan
from stored import compare

PLAN = plan()


def pods() -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "name": f"{entry.name}-0",
                "labels": {summary.RANK: str(entry.rank)},
                "annotations": {
                    summary.NETWORK_STATUS: json.dumps(
                        [{"interface": "eth0", "ips": ["10.42.0.9"]}]
                        + [{"interface": n.interface, "ips": [n.ip]} for n in entry.networks]
                    )
                },
            }
        }
        for entry in PLAN.ranks
    ]


DEVICES = {
    entry.node: [
        {
            "name": network.rdma_device,
            "ports": [
                {
                    "gids": [
                        {"index": 2, "type": "RoCE v1", "ipv4": network.ip},
                        {"index": 3 + place, "type": "RoCE v2", "ipv4": network.ip},
                        {"index": 0, "type": "RoCE v2", "ipv4": None},
                    ],
                }
            ],
        }
        for place, network in enumerate(entry.networks)
    ]
    for entry in PLAN.ranks
}
FOUND = summary.gids(DEVICES)
MTUS = {rank: {"net1": 9000, "net2": 9000} for rank in range(4)}
VERDICT = {
    "verdict": "ib",
    "transport_class": "rdma",
    "evidence": "channels",
    "satisfied": True,
    "ranks": [{"rank": n, "verdict": "ib", "channels": {"IB": {"0": 4, "1": 4}}} for n in range(4)],
}
CLUSTER = ("~/.kube/config", "gb10")
SPEED = {"tokens": 64, "tokens_per_second": 21.94, "first_token_seconds": 0.1}


def test_the_whole_screen() -> None:
    lines = summary.summary(PLAN, pods(), FOUND, MTUS, VERDICT, SPEED, *CLUSTER)
    assert lines[0].startswith("gemma-4-31b-it: profile gemma-4-31b-it/throughput, SGLang 0.5.12.post1, 4 rank(s)")
    first, second = lines[3].split(), lines[4].split()
    assert first[:5] == ["0", "spark1", "gemma-4-31b-it-0-0", "0", "rocep1s0f0v0"]
    assert first[5:] == ["net1", "10.100.0.1", "9000", "3", "NET/IB", "0:4", "1:4"]
    assert second == ["1", "roceP2p1s0f0v0", "net2", "10.101.0.1", "9000", "4"]
    assert len(lines) == 3 + 8 + 6
    assert lines[-5] == "Transport: ib (rdma), by channels evidence, as expected"
    assert lines[-4] == "Speed: 21.9 tokens/s in one stream of 64 tokens, the first after 0.10 s"
    assert lines[-2] == "  kubectl --context gb10 -n gb10-serving port-forward service/gemma-4-31b-it 30000"


def test_the_request_is_one_that_a_shell_accepts_and_the_model_answers() -> None:
    chat = summary.next_steps(PLAN, *CLUSTER)[-1]
    program, address, *options = shlex.split(chat)
    assert (program, address) == ("curl", "http://127.0.0.1:30000/v1/chat/completions")
    assert json.loads(options[-1])["messages"][0]["role"] == "user"
    ranks = (replace(PLAN.ranks[0], argv=("--is-embedding",)), *PLAN.ranks[1:])
    assert summary.next_steps(replace(PLAN, ranks=ranks), *CLUSTER)[-1].endswith("/v1/models")


@pytest.mark.parametrize(
    ("kubeconfig", "context", "words"),
    [
        ("~/clusters/lab one", "admin@lab", ["--kubeconfig", "~/clusters/lab one", "--context", "admin@lab"]),
        ("/etc/kube/config", "the lab", ["--kubeconfig", "/etc/kube/config", "--context", "the lab"]),
    ],
)
def test_another_kubeconfig_is_named(kubeconfig: str, context: str, words: list[str]) -> None:
    forward = summary.next_steps(PLAN, kubeconfig, context)[-2]
    assert shlex.split(forward)[1:5] == words
    assert ("--kubeconfig ~/" in forward) == kubeconfig.startswith("~/")


def test_values_that_were_not_read_are_dashes() -> None:
    lines = summary.summary(PLAN, [], {}, {}, {}, {}, *CLUSTER)
    assert lines[3].split()[:4] == ["0", "spark1", "no", "pod"]
    assert lines[3].split()[-4:] == ["-", "-", "-", "-"]
    assert lines[-4].startswith("Transport: not verified")


def test_one_gpu_needs_no_transport() -> None:
    alone = replace(PLAN, expect=replace(PLAN.expect, ranks=1, nodes=1))
    assert "Transport: none, because one GPU exchanges nothing" in summary.summary(
        alone, [], {}, {}, {}, SPEED, *CLUSTER
    )


def test_a_wrong_transport_is_not_hidden() -> None:
    verdict = {"verdict": "socket", "transport_class": "tcp", "evidence": "channels", "satisfied": False, "ranks": []}
    assert "NOT as expected" in summary.summary(PLAN, pods(), FOUND, MTUS, verdict, {}, *CLUSTER)[-4]


def test_one_node_has_a_row_without_a_fabric() -> None:
    one = plan({"nodes": 1, "tp": 1}, nodes=("b300",))
    assert len(summary.rows(one, [], {}, {}, {})) == 1


def workload(*argv: str, name: str = "sglang") -> dict[str, Any]:
    command = ["python3", "/opt/gb10/start_rank.py", "--model", "/no", "--", "python3", "-m", "x", *argv]
    template = {"metadata": {}, "spec": {"containers": [{"name": name, "command": command}]}}
    return {"kind": "StatefulSet", "metadata": {"name": "g-0"}, "spec": {"template": template}}


def test_a_status_names_model_and_address_of_the_head() -> None:
    head = workload("--model-path", "org/m", "--node-rank", "0", "--port", "31000")
    worker = workload("--model-path", "/srv/m", "--node-rank", "1", "--port", "32000")
    said = "g serves org/m at http://g.ns:31000/v1, in the cluster"
    assert summary.served([worker, head], "ns", "g") == said
    assert summary.served([workload("--model-path", "org/m")], "ns", "g").endswith(":30000/v1, in the cluster")
    assert [summary.served(each, "ns", "g") for each in ([], [worker], [workload(name="other")])] == ["", "", ""]


def test_the_verdict_of_the_image_is_one_line() -> None:
    said = {"verdict": "accepted", "message": "", "release": "0.5.23", "seconds": 13.4, "mebibytes": 450}
    assert summary.judged(said) == ["Command lines: accepted by the image's own SGLang 0.5.23 (13 s, 450 MiB)"]
    assert summary.judged({}) == []
    assert summary.judged({"verdict": "unknown", "message": "no pod"})[0].endswith(
        "SGLang unknown (0 s, 0 MiB): no pod"
    )


def text(**changes: object) -> str:
    options = PodOptions(secrets={"HF_TOKEN": ("s", "k")})
    return describe(render(plan(changes), options, {}, {}))


def test_one_changed_flag_is_one_changed_line_per_rank() -> None:
    before, after = text().splitlines(), text(argv=("--attention-backend", "flashinfer")).splitlines()
    gone = [line for line in before if line not in after and "revision" not in line]
    assert set(gone) == {"    --attention-backend triton", "    --mem-fraction-static 0.6"}
    assert before.count("    --attention-backend triton") == 4


def test_all_ranks_in_order_and_no_secret() -> None:
    shown = text()
    # The API lists objects by name.
    assert describe(reversed(render(plan(), PodOptions(secrets={"HF_TOKEN": ("s", "k")}), {}, {}))) == shown
    parts = ["  command:", "  env:", "  networks:", "  transport:"]
    assert [line for line in shown.splitlines() if line.endswith(":")] == [
        line for number in range(4) for line in (f"rank {number}:", *parts)
    ]
    assert "    net2: gb10-rail1-vf0 10.101.0.4/24" in shown
    assert "    HF_TOKEN=from a Secret" in shown
    assert shown.count(f"\n  image: {PLAN.image}\n") == 4


def test_without_workloads_the_text_is_empty() -> None:
    assert describe([{"kind": "Service", "metadata": {}}]) == ""


def test_a_group_is_outdated_when_any_rank_runs_another_revision() -> None:
    wanted = render(plan(), PodOptions(), {}, {})
    other = render(plan(vf_index=1), PodOptions(), {}, {})
    assert not outdated([], wanted)
    assert not outdated(wanted, wanted)
    # Only workloads are compared.
    assert not outdated([o for o in wanted if o["kind"] == "StatefulSet"], wanted)
    assert outdated(other, wanted)
    assert outdated([o for o in wanted if o["metadata"]["name"] != "gemma-4-31b-it-3"], wanted)
    bare = [{"kind": "StatefulSet", "metadata": {"name": "gemma-4-31b-it-0", "labels": {}}}]
    assert outdated(bare, wanted)


def bare(name: str, rank: str | None, *beside: dict[str, Any], **container: Any) -> dict[str, Any]:
    """Return a workload as the API may return it: what is empty is absent."""
    labels = {"labels": {summary.RANK: rank}} if rank else {}
    spec = {
        "containers": [
            {"name": "sglang", "image": "i", "command": ["python3", "a", "--b", "c", "d", "--e"], **container},
            *beside,
        ]
    }
    return {
        "kind": "StatefulSet",
        "metadata": {"name": name, **labels},
        "spec": {"template": {"metadata": labels, "spec": spec}},
    }


def annotated(networks: Any) -> dict[str, Any]:
    found = bare(
        "g-2",
        "2",
        {"name": "other", "command": ["x", "--y", "z"]},
        env=[{"name": "A"}],
        resources={"b": {"d": 1, "c": 2}, "a": []},
    )
    found["spec"]["template"]["metadata"]["annotations"] = {summary.NETWORKS: json.dumps(networks)}
    return found


MANY: dict[str, Any] = {
    "verdict": "ib",
    "transport_class": "rdma",
    "evidence": "channels",
    "satisfied": True,
    "evidence_files": ["a", "b"],
    "counters": {"cables": {"a": 1500000, "b": 250000}},
    "ranks": [
        {"rank": 1, "channels": {"Socket": {"1": 2}, "IB": {"1": 4, "0": 2}}},
        {"rank": 0, "verdict": "no"},
        {"rank": 2},
    ],
}
READ = [
    {
        "item": {"metadata": {"name": f"g-{n}-0"}, "spec": {"nodeName": "a"} if n else {}},
        "log_lines": ["x", "y"] if n else [],
    }
    for n in (0, 1)
]


def test_what_is_said_about_running_groups_is_what_is_stored() -> None:
    alone = plan({"nodes": 1, "tp": 1}, nodes=("b300",))
    some = pods()[1:3]
    some[0]["metadata"]["annotations"] = {
        summary.NETWORK_STATUS: json.dumps([{"interface": "net2", "ips": "x"}, {"ips": []}])
    }
    del some[1]["metadata"]["annotations"]
    other = [*some, {"metadata": {}}, {"metadata": {"labels": None}}]
    theirs = plan(networks=({"name": "a", "namespace": "b"},))
    waived = replace(PLAN, waived={"a": [], "b": []})
    devices = {"spark1": [*DEVICES["spark1"], {"name": "x", "ports": [{"gids": []}, *DEVICES["spark1"][0]["ports"]]}]}
    seen = {
        "all": summary.summary(PLAN, pods(), FOUND, MTUS, MANY, SPEED, *CLUSTER),
        "some": summary.summary(waived, other, FOUND, {2: {"net1": 1500}}, {"verdict": "x"}, {}, "~/a b", "c d"),
        "one node": summary.summary(alone, [], {}, {}, {}, SPEED, "/a", "c"),
        "networks of others": summary.summary(
            theirs, pods(), {}, MTUS, {"ranks": None, "satisfied": True}, {}, *CLUSTER
        ),
        "GIDs": [f"{key} {index}" for key, index in summary.gids(devices | {"spark2": DEVICES["spark2"]}).items()],
        "image": summary.judged({"verdict": "rejected"})
        + summary.judged({"verdict": "a", "seconds": 1.6, "message": "m"}),
        "logs": summary.shown_logs(READ, "ns", *CLUSTER),
        "no logs": summary.shown_logs([], "ns", *CLUSTER),
        "ranks": describe(
            [
                bare("g-10", "10"),
                annotated([{"interface": "a", "name": "n", "ips": ["1", "2"]}, {"ips": "x"}]),
                bare("g", None),
                bare("g-x", "x"),
            ]
        ).splitlines(),
        "none": describe([bare("g", None)]).splitlines(),
    }
    compare("serving_summaries", seen)
