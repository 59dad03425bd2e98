# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the text form of a group: one line per setting, without secrets."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.diff import describe, flags, outdated
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from serving_samples import plan


def text(**changes: object) -> str:
    options = PodOptions(secrets={"HF_TOKEN": ("s", "k")})
    return describe(render(plan(changes), options, {}, {}))


def test_one_flag_per_line() -> None:
    assert flags(["python3", "-m", "x", "--a", "--b", "1", "2"]) == ["python3 -m x", "--a", "--b 1 2"]


def test_one_changed_flag_is_one_changed_line_per_rank() -> None:
    before, after = text().splitlines(), text(argv=("--attention-backend", "flashinfer")).splitlines()
    gone = [line for line in before if line not in after and "revision" not in line]
    assert set(gone) == {"    --attention-backend triton", "    --mem-fraction-static 0.6"}
    assert before.count("    --attention-backend triton") == 4


def test_all_ranks_in_order_and_no_secret() -> None:
    shown = text()
    assert [line for line in shown.splitlines() if line.startswith("rank")] == [f"rank {n}:" for n in range(4)]
    assert "    net2: gb10-rail1-vf0 10.101.0.4/24" in shown
    assert "    HF_TOKEN=from a Secret" in shown


def test_without_workloads_the_text_is_empty() -> None:
    assert describe([{"kind": "Service", "metadata": {}}]) == ""


def test_a_group_is_outdated_when_any_rank_runs_another_revision() -> None:
    wanted = render(plan(), PodOptions(), {}, {})
    other = render(plan(vf_index=1), PodOptions(), {}, {})
    assert not outdated([], wanted)
    assert not outdated(wanted, wanted)
    assert outdated(other, wanted)
    assert outdated([o for o in wanted if o["metadata"]["name"] != "gemma-4-31b-it-3"], wanted)
    bare = [{"kind": "StatefulSet", "metadata": {"name": "gemma-4-31b-it-0", "labels": {}}}]
    assert outdated(bare, wanted)
