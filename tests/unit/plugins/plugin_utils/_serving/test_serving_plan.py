# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what no stored plan has: any order of nodes, SGLang's releases, its known holes, and all shipped profiles."""

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.checks import check, facts_of, holes
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import to_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve
from hypothesis import given
from hypothesis import strategies as st
from role_samples import role_values
from serving_samples import fabric, profile, settings
from shipped_profiles import SHIPPED


def flag(argv: tuple[str, ...], name: str) -> str:
    assert argv.count(name) == 1
    return argv[argv.index(name) + 1]


@given(
    order=st.permutations([f"spark{n}" for n in range(1, 9)]),
    size=st.integers(min_value=2, max_value=8),
    vf_index=st.integers(min_value=0, max_value=3),
)
def test_addresses_follow_the_node_never_the_rank(order: list[str], size: int, vf_index: int) -> None:
    hosts = fabric(8, 4)
    nodes = tuple(order[:size])
    plan, findings = plan_group(hosts, profile(nodes=size, tp=size), settings(nodes=nodes, vf_index=vf_index))
    assert findings == []
    for rank, entry in enumerate(plan.ranks):
        node_id = hosts["hosts"][nodes[rank]]["node_id"]
        assert [n.address for n in entry.networks] == [
            f"10.100.{vf_index}.{node_id}/24",
            f"10.101.{vf_index}.{node_id}/24",
        ]
        assert entry.env["SGLANG_HOST_IP"] == f"10.100.{vf_index}.{node_id}"
        assert flag(entry.argv, "--node-rank") == str(rank)
    assert len({flag(entry.argv, "--dist-init-addr") for entry in plan.ranks}) == 1


@pytest.mark.parametrize(
    ("version", "release"),
    [
        *(("0.5.21", "0.5.21"), ("0.5.12.post1", "0.5.12"), ("mine", "")),
        *(("0.5.21-dev", "0.5.20"), ("0.5.12.dev155+gbcf8d100d", "0.5.11"), ("0.6.0-rc1", "0.6.0")),
    ],
)
def test_a_development_build_counts_as_the_release_before(version: str, release: str) -> None:
    assert facts_of(profile(sglang_version=version), settings())["release"] == release


def test_the_plan_names_known_holes_in_one_line() -> None:
    old = profile(sglang_version="0.5.20", argv=("--enable-custom-logit-processor=True",))
    (line,) = holes(old, settings())
    assert line == (
        "known holes of SGLang 0.5.20: open: CVE-2026-7304; note: CVE-2026-112266, CVE-2026-111392; "
        "closed here: CVE-2026-15969, CVE-2026-86793, CVE-2026-15976"
    )
    (opened,) = holes(old, settings(open_routes=True))
    assert "closed" not in opened
    (newest,) = holes(profile(sglang_version="0.5.23"), settings())
    assert newest == "known holes of SGLang 0.5.23: note: CVE-2026-112266"
    assert holes(profile(sglang_version="mine"), settings()) == []


def test_profiles_that_trust_a_repository_s_code_pin_it() -> None:
    """For these five no public record of a commit was found."""
    library = Library.load([])
    unpinned = set()
    for name, shipped in SHIPPED.items():
        served = to_serving(resolve(shipped, None, None, {}, library, None), role_values("serving_plan"))
        given = {finding.rule for finding in check(None, served, settings())}
        unpinned |= {name} if "serving.model.code" in given else set()
    assert unpinned == {
        *("ling-3.0-flash", "minimax-m2.5", "minimax-m2.7", "nemotron-3-ultra-550b", "qwen3.6-27b-nvfp4"),
    }


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("argv", "revisions", "named"),
    [
        (("--trust-remote-code",), {"a/b": "main", "c/d": "v1", "e/f": COMMIT}, ["a/b", "c/d"]),
        (("--trust-remote-code",), {"a/b": COMMIT}, []),
        (("--trust-remote-code",), {"a/b": COMMIT[:39]}, ["a/b"]),
        ((), {"a/b": "main"}, []),
    ],
)
def test_code_of_a_repository_that_can_change_is_warned_of(
    argv: tuple[str, ...], revisions: dict[str, str], named: list[str]
) -> None:
    findings = plan_group(fabric(), profile(argv=argv, revisions=revisions), settings())[1]
    found = [finding for finding in findings if finding.rule == "serving.model.code"]
    assert [finding.severity for finding in found] == ["warning"] * len(named)
    assert [finding.remedy.split()[6] for finding in found] == [f"https://huggingface.co/{name}" for name in named]
