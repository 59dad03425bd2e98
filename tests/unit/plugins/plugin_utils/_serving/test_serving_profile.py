# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test from where the planner reads the models of a resolved profile."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import model as sp
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import resolve
from role_samples import role_values

RAW: dict[str, Any] = {
    "name": "tiny",
    "model": {"repo": "org/tiny"},
    "sglang_version": "0.5.20",
    "images": [{"sglang": "0.5.20", "image": "registry.example/sglang@sha256:0"}],
    "topology": {"nodes": 2, "tp": 2, "pp": 1, "ep": 1},
    "server_args": {
        "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": "org/draft",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    },
    "env": {"A": "1"},
}


def test_models_are_downloaded_by_default() -> None:
    profile = sp.to_serving(resolve(RAW), role_values("serving_plan", models_dir=""))
    assert profile.model_path == "org/tiny"
    assert "org/draft" in profile.argv
    assert (profile.nodes, profile.tp, profile.image) == (2, 2, "registry.example/sglang@sha256:0")
    assert profile.env == {"A": "1"}
    assert profile.argv.count(sp.METRICS) == 1


def test_staged_models_are_read_from_their_directory_the_draft_too() -> None:
    resolved = resolve(RAW)
    profile = sp.to_serving(resolved, role_values("serving_plan", models_dir="/srv/models", metrics=False))
    assert profile.model_path == "/srv/models/org--tiny"
    assert "/srv/models/org--draft" in profile.argv
    assert "org/draft" not in profile.argv
    assert sp.METRICS not in profile.argv
    assert sp.repositories(resolved) == ["org/tiny", "org/draft"]


def test_a_path_of_the_profile_stays() -> None:
    resolved = resolve({**RAW, "model": {"repo": "org/tiny", "path": "/data/tiny"}})
    assert (
        sp.to_serving(resolved, role_values("serving_plan", models_dir="/srv/models", metrics=False)).model_path
        == "/data/tiny"
    )
    assert sp.repositories(resolved) == ["org/draft"]
    assert sp.to_serving(resolved, role_values("serving_plan", models_dir="/srv/models", metrics=False)).paths == (
        "/data/tiny",
    )


def test_a_rank_compares_its_start_with_memory_that_gpu_and_cpu_share_only() -> None:
    memory = {"load_gib": 14.6, "fraction": 0.80004, "available_gib": 103.0, "most_gib": 109.0}
    assert sp._load(memory) == Load(14.6, 0.8, 103.0, 109.0)
    assert sp._load(memory | {"load_gib": None}) is None


def test_time_outs_suit_a_first_step_that_compiles_kernels() -> None:
    argv = sp.to_serving(resolve(RAW), role_values("serving_plan", models_dir="")).argv
    assert argv[-4:] == ("--watchdog-timeout", "3600", "--dist-timeout", "900")


def test_time_outs_of_the_profile_win() -> None:
    raw = {**RAW, "server_args": {**RAW["server_args"], "watchdog_timeout": 60, "dist_timeout": 90}}
    argv = sp.to_serving(resolve(raw), role_values("serving_plan", models_dir="")).argv
    assert (argv.count("--watchdog-timeout"), argv.count("--dist-timeout")) == (1, 1)
    assert "3600" not in argv


def test_metrics_are_asked_for_once() -> None:
    raw = {**RAW, "server_args": {**RAW["server_args"], "enable_metrics": True}}
    assert sp.to_serving(resolve(raw), role_values("serving_plan", models_dir="")).argv.count(sp.METRICS) == 1


def test_a_revision_reaches_the_server_and_the_staging_that_of_the_draft_too() -> None:
    args = {**RAW["server_args"], "speculative_draft_model_revision": "v2"}
    resolved = resolve({**RAW, "model": {"repo": "org/tiny", "revision": "deadbeef"}, "server_args": args})
    assert sp.revisions(resolved) == {"org/tiny": "deadbeef", "org/draft": "v2"}
    served = sp.to_serving(resolved, role_values("serving_plan", models_dir="", metrics=False))
    assert served.revision == "deadbeef"
    assert served.argv[served.argv.index("--speculative-draft-model-revision") + 1] == "v2"


def test_without_a_revision_there_is_the_hub_s_default() -> None:
    resolved = resolve(RAW)
    assert sp.revisions(resolved) == {"org/tiny": "main", "org/draft": "main"}
    assert sp.to_serving(resolved, role_values("serving_plan", models_dir="", metrics=False)).revision == ""


def test_a_path_has_no_revision_to_stage() -> None:
    resolved = resolve({**RAW, "model": {"repo": "org/tiny", "path": "/data/tiny", "revision": "deadbeef"}})
    assert sp.revisions(resolved) == {"org/draft": "main"}
