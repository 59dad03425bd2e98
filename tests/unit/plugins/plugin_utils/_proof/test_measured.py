# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the ledger with bytes that real NCCL moved: passes of two to eight ranks, and single collectives."""

import csv
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import (
    ALL,
    Choice,
    Choices,
    Collective,
    Scope,
    Shape,
    Split,
    Work,
    exchanged,
    predict,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import judge

SHARED = "shared-gpu.tsv"
MEASURED = Path(__file__).parents[3] / "fixtures" / "nccl-bytes"


class Pass(NamedTuple):
    """One row: what one rank sent and received in a decode pass, and what the ledger is told about it."""

    table: str
    ranks: int
    rank: int
    shape: Shape
    tokens: int
    moved: int

    @property
    def split(self) -> Split:
        return Split(self.ranks, self.ranks, 1)

    @property
    def work(self) -> Work:
        return Work(0, 0, self.tokens, 1, captured=())


def rows(name: str) -> Iterator[list[str]]:
    with (MEASURED / name).open(encoding="utf-8") as stream:
        yield from csv.reader((line for line in stream if not line.startswith("#")), delimiter="\t")


def passes(name: str = "passes.tsv") -> Iterator[Pass]:
    for table, *numbers in rows(name):
        ranks, rank, hidden, blocks, vocabulary, tokens, moved = map(int, numbers)
        yield Pass(table, ranks, rank, Shape(hidden, blocks // 2, vocabulary, blocks), tokens, moved)


def groups() -> list[list[Pass]]:
    ordered = sorted(passes(), key=lambda row: (row.table, row.ranks, row.shape.hidden, row.tokens, row.rank))
    return [list(found) for _key, found in groupby(ordered, key=lambda row: (row.table, *row[1:2], *row[3:5]))]


ROWS = [*passes(), *passes(SHARED)]
# One test for the rows of a table with so many ranks.
TABLES = {f"{key[0]}-{key[1]}": [row for row in ROWS if row[:2] == key] for key in sorted({row[:2] for row in ROWS})}


def test_the_fixture_is_whole() -> None:
    assert (len(list(passes())), len(list(passes(SHARED)))) == (216, 12 * (5 + 6 + 7 + 8))
    assert [len(group) for group in groups()] == 2 * (12 * [2] + 12 * [3] + 12 * [4])


@pytest.mark.parametrize("table", TABLES)
def test_every_rank_of_real_nccl_is_explained_and_a_tenth_by_tcp_is_seen(table: str) -> None:
    for row in TABLES[table]:
        needed = predict(row.shape, row.split, row.work)
        tenth = row.moved // 10
        shares = ((row.moved, 0), (0, row.moved), (row.moved - tenth, tenth + 1), (tenth, 0))
        assert [judge(needed, *share).verdict for share in shares] == ["rdma", "tcp", "mixed", "unexplained"], row


@pytest.mark.parametrize("group", groups(), ids=lambda group: f"{group[0].table}-{group[0].ranks}-{group[0].tokens}")
def test_all_ranks_together_move_what_their_protocols_need(group: list[Pass]) -> None:
    """Ring and tree differ by rank, not in their sum: one pair of protocols explains it within 2 %, and no other."""
    row, total = group[0], sum(each.moved for each in group)
    assert judge(predict(row.shape, row.split, row.work, ALL), total, 0).verdict == "rdma"
    near, errors = [], []
    for reduce, gather in product(("LL", "SIMPLE"), repeat=2):
        choices = Choices(row.ranks)
        choices.sizes["reduce"][row.tokens * row.shape.hidden * 2] = Choice("TREE", reduce, (0, 0))
        choices.sizes["gather"][row.tokens * row.shape.vocabulary * 2] = Choice("RING", gather, (0, 0))
        found = exchanged(of_pass(row), row.split, Scope(None, choices))
        errors.append(abs(found.low / total - 1))
        near += [(reduce, gather)] if judge(found, total, 0).verdict == "rdma" and errors[-1] < 0.02 else []
    assert len(near) == 1, errors


def of_pass(row: Pass) -> list[Collective]:
    """Return the collectives of a pass whose batch is the same for all passes."""
    reduces = Collective("reduce", row.shape.blocks + 1, row.tokens * row.shape.hidden * 2)
    return [reduces, Collective("gather", 1, row.tokens * row.shape.vocabulary * 2)]


# The places of four ranks in NCCL's two trees, as the bytes of 4 KiB (first tree) and 8 KiB (both) show them.
PLACES = ((1, 1), (1, 3), (3, 1), (1, 1))


def test_a_rank_in_a_tree_moves_what_its_place_needs() -> None:
    for row in (row for row in TABLES["b-4"] if row.tokens * row.shape.hidden < 16384):
        size, gathered = row.tokens * row.shape.hidden * 2, row.tokens * row.shape.vocabulary * 2
        protocol = "LL" if gathered <= 1 << 20 else "SIMPLE"
        tree = f"AllReduce: {size} Bytes -> Algo TREE proto LL channel{{Lo..Hi}}={{0..{int(size > 4096)}}}"
        ring = f"AllGather: {gathered // 4} Bytes -> Algo RING proto {protocol} channel{{Lo..Hi}}={{0..1}}"
        choices = Choices(4).read("g", [tree]).read("g", [ring])
        unplaced = exchanged(of_pass(row), row.split, Scope("g", choices))
        assert judge(unplaced, row.moved, 0).verdict == "rdma"
        choices.neighbours["g"] = dict(enumerate(PLACES[row.rank]))
        placed = exchanged(of_pass(row), row.split, Scope("g", choices))
        assert placed.low == pytest.approx(row.moved, rel=0.02)
        assert placed.usual == pytest.approx(row.moved, rel=0.10)
        assert unplaced.high > 2 * placed.low or unplaced.low < placed.low / 1.5


@pytest.mark.parametrize("table", [name for name in TABLES if name.endswith("-8")])
def test_what_nccl_said_is_within_a_tenth_of_what_each_of_eight_ranks_moves(table: str) -> None:
    choices = Choices(8)
    for line in (MEASURED / SHARED).read_text(encoding="utf-8").splitlines():
        if line.startswith(f"# {table.removesuffix('-8')} 8 "):
            choices.read(line.split()[3].rstrip(":"), [line])
    for row in TABLES[table]:
        scope = Scope(str(row.rank), choices)
        found = predict(row.shape, row.split, row.work, scope)
        if row.tokens == 1:  # The batches of a larger mean are not known.
            assert found.usual == pytest.approx(row.moved, rel=0.10)
            assert judge(found, row.moved // 2, 0).verdict == "unexplained"
        found = exchanged(of_pass(row), row.split, scope)
        assert found.usual == pytest.approx(row.moved, rel=0.10)
        assert judge(found, row.moved, 0).verdict == "rdma"


@pytest.mark.parametrize(("setting", "kind", "size", "moved", "line"), list(rows("choices.tsv")))
def test_one_collective_moves_what_nccls_line_says(setting: str, kind: str, size: str, moved: str, line: str) -> None:
    choices = Choices(2).read("g", [line, f"{setting} no line of NCCL"])
    one = Collective("reduce" if kind == "reduce" else "gather", 1, int(size))
    found = exchanged([one], Split(2, 2, 1), Scope("g", choices))
    # The bytes on the loopback interface of both ranks are those that one rank sends and receives.
    assert found.usual == pytest.approx(int(moved), rel=0.03 if int(size) >= 8192 else 0.10)
    assert judge(found, int(moved), 0).verdict == "rdma"
    assert found.high < 1.15 * found.low or int(size) < 8192
    # With half of the bytes on a path that nobody counts.
    assert judge(found, int(moved) // 2, 0).verdict == "unexplained"
