# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a failure fits on a screen, says everything once, and keeps what a reader needs."""

from dataclasses import replace

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, cut
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import (
    HEIGHT,
    Cause,
    Screen,
    State,
    counted,
    names,
    render,
    render_findings,
    render_text,
    shared,
)

LONG = " ".join(f"word{number}" for number in range(400))
SCREENS = {
    "only a title": Screen("It failed."),
    "a cause": Screen("It failed.", [Cause("the cable is out", "Plug it in")], evidence="link down", source="dmesg"),
    "many ranks": Screen(
        "It failed.", states=[State(f"rank {n}", f"reason {n}", f"spark{n}") for n in range(200)], details="results/x"
    ),
    "everything is long": Screen(
        LONG[:300],
        [Cause(f"{n} {LONG}", LONG) for n in range(9)],
        [State(f"rank {n}", f"{n} {LONG}") for n in range(9)],
        [("Counters", LONG)],
        LONG,
        LONG,
        "ansible-playbook -i inventory/mine gb10.cluster.site",
        "results/failed-mine.txt",
    ),
}


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("name", SCREENS)
def test_a_failure_fits_on_a_screen(name: str, width: int) -> None:
    lines = render(SCREENS[name], width).splitlines()
    assert 0 < len(lines) <= HEIGHT
    assert max(map(len, lines)) <= width


def test_the_title_command_and_file_are_there_however_much_there_is_to_say() -> None:
    said = " ".join(render(SCREENS["everything is long"], 80).split())
    assert said.startswith("word0 word1")
    assert "Then run: ansible-playbook -i inventory/mine gb10.cluster.site" in said
    assert "8 more causes, logs and all details: results/failed-mine.txt" in said


def test_texts_that_differ_in_the_names_of_their_ranks_are_said_once() -> None:
    states = [State(f"rank {n}", f"pod g-{n}-0 on spark{n} waits", f"spark{n}", (f"g-{n}-0",)) for n in range(3)]
    other = State("rank 3", "crashed", "spark3")
    assert [len(group) for group, _text in shared([*states, other])] == [3, 1]
    assert render(Screen("No.", states=[*states, other])).splitlines()[1:] == [
        "Ranks 0, 1, 2 on spark0, spark1, spark2: pod g-0-0 on spark0 waits",
        "Rank 3 on spark3: crashed",
    ]
    assert render(Screen("No.", states=states)).splitlines()[1] == "All 3 ranks: pod g-0-0 on spark0 waits"


@pytest.mark.parametrize(
    ("whos", "total", "text"),
    [
        (["rank 0"], 1, "rank 0"),
        (["rank 0", "rank 2"], 4, "ranks 0, 2"),
        (["rank 0", "rank 1"], 2, "all 2 ranks"),
        (["host spark1"], 2, "host spark1"),
        (["rank 0", "pod x"], 2, "rank 0, pod x"),
    ],
)
def test_ranks_are_named_together(whos: list[str], total: int, text: str) -> None:
    assert names(whos, total) == text


def test_a_cut_text_keeps_its_end() -> None:
    text = f"begin {LONG} x509: certificate signed by unknown authority"
    assert cut(text, 120).startswith("begin word0")
    assert cut(text, 120).endswith("x509: certificate signed by unknown authority")
    assert len(cut(text, 120)) <= 120
    assert cut("a\n  b", 10) == "a b"


def test_a_command_stays_on_one_line() -> None:
    command = f"ansible-playbook -i {'x' * 90} gb10.cluster.site"
    assert f"Then run: {command}" in render(replace(SCREENS["a cause"], command=command), 80).splitlines()


def test_a_remedy_of_several_causes_is_read_once_below_them() -> None:
    causes = [Cause("a is wrong", "Do x", "rank 1"), Cause("b is wrong", "Do y"), Cause("c is wrong", "Do x", "rank 0")]
    assert render(Screen("It failed.", causes)).splitlines()[1:] == [
        "Cause (rank 1): A is wrong.",
        "Cause (rank 0): C is wrong.",
        "What to do: Do x.",
        "Cause: B is wrong.",
        "What to do: Do y.",
    ]
    bare = [Cause("d", ""), Cause("e", "")]
    assert render(Screen("It failed.", bare)).splitlines()[1:] == ["Cause: D.", "Cause: E."]


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("count", [1, 5, 25, 26, 400])
def test_a_message_of_many_lines_keeps_its_begin_and_its_end(width: int, count: int) -> None:
    text = "\n".join(["Group g is not ready.", *(f"  pod {n}: {'word ' * 30}" for n in range(count)), "Do this."])
    lines = render_text(text, width, details="results/failed-g.txt").splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= width
    assert (lines[0], lines[1][:6]) == ("Group g is not ready.", "  pod ")
    assert lines[-2:] == ["Do this.", "All details: results/failed-g.txt"]
    assert any("more lines" in line for line in lines) is (count > 20)


RANGE = Finding(
    "error",
    "fabric.node_id.range",
    "gb10_node_id",
    300,
    "a /24 subnet of rail0, rail1 has room for 1 … 254",
    "Use a smaller number, or a shorter gb10_fabric_subnet_prefix and a larger block.",
    "spark3",
    place="inventory/mine/hosts.yml:13",
)
OTHER = Finding("warning", "a.b", "key", None, "why?", "Do it.")
TWINS = [
    Finding("error", "x.y", "k", 1, "bad", "Mend it.", host, place=f"host_vars/{host}.yml:1")
    for host in ("a", "b", "a")
]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_findings_are_wrapped_and_their_words_stay_whole(width: int) -> None:
    lines = render_findings([RANGE, OTHER], width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(render_findings([RANGE, OTHER], 10**6).split())


def test_findings_are_counted_as_they_are_shown() -> None:
    assert counted([*TWINS, OTHER, OTHER]) == "1 error, 1 warning"
    assert counted([*TWINS, RANGE]) == "2 errors"
    assert (counted([], zero=True), counted([OTHER], zero=True)) == ("0 errors, 0 warnings", "0 errors, 1 warning")
