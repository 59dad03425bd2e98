# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the pod that asks an image, and how its answers become a verdict: half ones, garbage and none are unknown."""

import base64
import json
import random
import zlib
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import serving_verdict as verdict

GPU = {"name": "NVIDIA GB10", "capability": [12, 1], "count": 1, "memory": 119, "processors": 48}
RANKS = [
    {"rank": n, "argv": ["python3", "-m", "sglang.launch_server", "--node-rank", str(n)], "env": {"A": str(n)}, "x": 1}
    for n in (0, 1)
]


def line(rank: int, kind: str = "accepted", message: str = "", **more: Any) -> str:
    return verdict.MARK + json.dumps({"rank": rank, "verdict": kind, "message": message, "release": "0.5.23", **more})


def unpacked(asked: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(asked)))


def test_the_question_has_every_rank_s_own_line_and_the_files_by_directory() -> None:
    content = base64.b64encode(b'{"a": 1}').decode()
    asked = unpacked(verdict.question(RANKS, [{"source": "/models/a--b/config.json", "content": content}], GPU, 9))
    assert asked == {
        "gpu": GPU,
        "limit": 9,
        "files": {"/models/a--b": {"config.json": '{"a": 1}'}},
        "ranks": [{"rank": n, "argv": ["--node-rank", str(n)], "env": {"A": str(n)}} for n in (0, 1)],
    }


def test_a_question_that_no_argument_can_hold_is_not_asked() -> None:
    noise = random.Random(1).randbytes(200_000)
    with pytest.raises(ValueError, match="too many"):
        verdict.question(RANKS, [{"source": "/m/config.json", "content": base64.b64encode(noise)}], GPU, 9)


def test_the_pod_is_admitted_at_the_level_restricted_and_has_no_gpu_and_no_fabric() -> None:
    pod = verdict.verdict_pod("glm", "image@sha256:0", "spark1", "IfNotPresent", "program", "asked")
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert container["command"] == ["python3", "-c", "program", "asked"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert not {"volumes", "runtimeClassName", "hostNetwork", "hostIPC"} & spec.keys()
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
    assert "annotations" not in pod["metadata"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "spark1"}
    assert len(pod["metadata"]["name"]) <= 63
    # Another question is another pod, so that an old answer can't pass for a new one.
    other = verdict.verdict_pod("glm", "image@sha256:0", "spark1", "IfNotPresent", "program", "other")
    assert other["metadata"]["name"] != pod["metadata"]["name"]


def test_all_accepted_shows_what_sglang_will_change_of_the_given_values() -> None:
    lines = ["noise", line(0, overruled={"page_size": [1, 64]}), line(1)]
    found = verdict.judged(verdict.answers(lines, [0, 1], "why"))
    assert found["verdict"] == "accepted"
    assert found["msg"].splitlines() == [
        "SGLang 0.5.23 in the image accepts the command lines of all 2 ranks.",
        "  page_size: asked for 1, will run 64",
    ]
    assert [each["rank"] for each in found["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("lines", "kind", "why"),
    [
        ([line(0), line(1, "refused", "ValueError: no")], "refused", "rank 1: ValueError: no"),
        ([line(0, "refused", "E: no"), line(1, "refused", "E: no")], "refused", "E: no"),
        ([line(0, "refused", "E: no"), line(1, "unknown", "late")], "refused", "rank 0: E: no"),
        ([line(0), line(1)[:-9]], "unknown", "rank 1: it ended"),
        ([line(0)], "unknown", "rank 1: it ended"),
        ([], "unknown", "it ended"),
        (["Killed", "\x00\xff" * 40, verdict.MARK, verdict.MARK + "[]", verdict.MARK + "null"], "unknown", "it ended"),
        ([line(0), line(1, "yes")], "unknown", "rank 1: it ended"),
        ([line(0), line(1, changes={"a": 1})], "unknown", "rank 1: it ended"),
        ([line(0), line(1, resolved=[])], "unknown", "rank 1: it ended"),
        ([line(0), line("1"), verdict.MARK + '{"verdict": "accepted"}'], "unknown", "rank 1: it ended"),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_counts_first_and_what_is_not_a_whole_answer_is_unknown(
    lines: list[str], kind: str, why: str
) -> None:
    found = verdict.judged(verdict.answers(lines, [0, 1], "it ended"))
    assert (found["verdict"], found["why"]) == (kind, why)


def test_the_refusal_of_an_image_that_is_patched_later_is_only_a_warning() -> None:
    found = verdict.judged(verdict.answers([line(0, "refused", "E: no")], [0], ""), ["fix"])
    assert found["verdict"] == "unknown"
    assert "E: no (without the patches fix" in found["why"]
    assert found["msg"].startswith("Warning: ")


def test_how_the_container_ended_is_named() -> None:
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    pod = {"status": {"phase": "Failed", "containerStatuses": [{"state": state}]}}
    assert verdict.why_ended(pod) == "OOMKilled, exit code 137"
    assert verdict.why_ended({"status": {"phase": "Succeeded"}}) == ""
