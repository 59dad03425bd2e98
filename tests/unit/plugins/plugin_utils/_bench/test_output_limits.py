# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test at which length, share and number of repeats output counts as broken; the limits that were found are stored."""

import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.garbage import Garbage, find_noise, find_salad
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.guard import (
    StreamGuard,
    find_flood,
    find_loop,
    find_stutter,
    judge_text,
)
from output_corpus import prose
from stored import compare

BEFORE, AFTER = re.sub(r"[a-c0]", "e", prose(9, 3))[:500], re.sub(r"[a-c0]", "o", prose(9, 4))[:500]
PERIODS = {
    "new line": "\n",
    "blank": " ",
    "line of blanks": "      \n",
    "wide blanks": "\u2003\u2009",
    "letter": "a",
    "mark": "!",
    "two letters": "ab",
    "two marks": "!?",
    "rule": "-",
    "digit": "0",
    "two digits": "0,",
    "brackets": "()",
    "8 letters": "abcabbac",
    "8 with a digit": "abcabba0",
    "9 letters": "abcabbacc",
    "60 letters": AFTER[200:260],
    "60 with a line": AFTER[200:259] + "\n",
    "61 letters": AFTER[200:261],
    "101 letters": AFTER[200:301],
    "20 with digits": "12.5, 17.25; 3 4 56, ",
    "30 with digits": "12.5, 17.25; 3 4 56, 7 890, 1; ",
    "110 with digits": " ".join(str(number * number) for number in range(10, 38)) + ", ",
    "10 blanks with a line": "  \t   \t\t \n",
    "60 blanks": "".join(random.Random(1).choices(" \t", k=60)),
}
PLACES = {
    "all": ("", ""),
    "end": (BEFORE, ""),
    "end of little": (BEFORE[:50], ""),
    "end but 3": (BEFORE, "xyz\n"),
    "end but 4": (BEFORE, "wxyz"),
    "middle": (BEFORE, AFTER),
    "most of the middle": (BEFORE[:40], AFTER[:40]),
}


def first(found: Callable[[int], Garbage | None], most: int, least: int = 0) -> int:
    """Return the smallest number for which something is found; the largest and one more if nothing is."""
    return bisect_left(range(most + 1), True, lo=least, key=lambda number: found(number) is not None)


def short(found: Garbage | None) -> str:
    return f"{found.kind} at {found.at}: {found.detail}" if found else "nothing"


def loops(period: str) -> Iterator[str]:
    for place, (before, after) in PLACES.items():

        def found(times: int, before: str = before, after: str = after) -> Garbage | None:
            return find_loop(f"{before}{period * times}{after}" or " ")

        times = first(found, 1200 // len(period))
        yield f"{place}: {times} times: {short(found(times))}"


def test_each_loop_is_found_where_the_stored_limits_say() -> None:
    said = {name: list(loops(period)) for name, period in PERIODS.items()}
    shares = {
        "150 of data": ("00,1," * 32, ""),
        "200 of data": ("00,1," * 41, ""),
        "8 times": ("abcabbaccabcabbaccxyzzyxabcddc" * 8, "."),
        "3 times": ("".join(random.Random(2).choices("abcdefgh ", k=80)) * 3, "...."),
    }
    for name, (text, end) in shares.items():

        def passed(size: int, text: str = text, end: str = end) -> Garbage | None:
            return None if find_loop(BEFORE[:size] + text + end) else Garbage("", 0, "")

        said[name] = [f"not behind {first(passed, 500)} characters"]
    compare("output_loops", said)


def words(number: int, kinds: int, each: str = "") -> str:
    """Return words of so many kinds in random order, each kind at least once."""
    source = random.Random(number)
    known = [f"{one}{two}" for one in "bdfghklm" for two in ("ab", "ec", "id", "of", "ug", "am")][:kinds]
    return " ".join([*known, *source.choices(known, k=number - kinds)]) + each


def test_a_flood_of_few_words_has_stored_limits() -> None:
    said = {
        f"{number} words": [str(first(lambda kinds, n=number: None if find_flood(words(n, kinds)) else _ANY, 48, 3))]
        for number in (250, 300, 325, 400, 1000, 1100)
    }
    said["12 kinds"] = [f"from {first(lambda number: find_flood(words(number, 12)), 300, 12)} words"]
    text = words(400, 12)
    for name, sign in (("code", " ="), ("digits", " 1")):
        least = first(lambda times, one=sign: None if find_flood(text + one * times) else _ANY, 60)
        said[name] = [f"not with {least} among {len(text) + 2 * least} characters"]
    said["told"] = [short(find_flood(text)), short(find_flood(text.upper() + " " + text))]
    lines = "".join(f"the same line of many words {'abcd'[i % 4]} and so on it goes\n" for i in range(60))
    marked = "".join(f"the same {{line}} of = {'abcd'[i % 4]} and so on it goes\n" for i in range(16))
    squeezed = [lines, lines[:599], lines[:600], BEFORE * 1 + AFTER + lines, marked, "0123 4567 89 " * 200]
    squeezed += [prose(60, 7) + lines, prose(60, 8) + lines[:1800] + prose(3, 9)]
    said["squeezed"] = [re.sub(r"\d+-fold", "n-fold", short(find_flood(each))) for each in squeezed]
    compare("output_floods", said)


_ANY = Garbage("", 0, "")


def test_words_said_three_times_have_stored_limits() -> None:
    said = [f"{one} {one} {one}" for one in ("retire", "Paris", "of", "nine", "be")]
    cases = {
        "three places": f". {prose(4)} ".join(said[:3]),
        "four places": f". {prose(2)} ".join(said[:4]),
        "two kinds": f". {prose(2, 2)} ".join([*said[:2], *said[:2]]),
        "three kinds": f". {prose(2, 2)} ".join([*said[:3], said[0].upper()]),
        "twice": f". {prose(1)} ".join(one.rpartition(" ")[0] for one in said),
        "tabs": f". {prose(1)} ".join(one.replace(" ", "\t") for one in said),
        "a letter": f". {prose(1)} ".join(["a a a", "b b b", "c c c", "d d d"]),
    }
    found = {name: [short(find_stutter(text))] for name, text in cases.items()}
    few = first(lambda n: None if find_stutter(". ".join(said) + f" {AFTER * 2}"[: 12 * n]) else _ANY, 80)
    longer = first(lambda n: None if find_stutter(". ".join(said) + " x1y z" * n) else _ANY, 150)
    compare("output_stutter", found | {"how rare": [str(few), str(longer)]})


def test_output_that_is_no_text_has_stored_limits() -> None:
    plain = prose(30, 5)
    odd = {"broken": "\ufffd", "control": "\x01", "private": "\ue000", "unknown": "\U000e0fff", "latin": "\u00c3\u00a9"}
    odd |= {"quote": "\u00e2\u20ac", "picture": "\u00f0\u0178", "blank": "\u00c2\u00a0", "accents": "e" + "\u0301" * 4}
    odd |= {
        "escape": "\x1b",
        "form feed": "\f",
        "return": "\r",
        "tab": "\t",
        "letter": "\u00e9",
        "3 accents": "e\u0301\u0302\u0303",
    }
    cases = {}
    for name, sign in odd.items():
        times = first(lambda n, one=sign: find_noise(plain + one * n), 30)
        least = first(lambda size, one=sign: None if find_noise(plain[: size + 1] + one) else _ANY, 90)
        cases[name] = [f"{times} times behind {len(plain)} characters, once behind {least}"]
    signs = [
        "!",
        "?!",
        "?!%",
        "?!%&",
        "-",
        "-=",
        "-=|",
        "\u263a",
        "\U0001f600",
        "$ ",
        "$\n",
        "- ",
        "^\n",
        "= = \n",
        "= \n- \n",
        "-\n=\n|\n",
    ]
    for sign in signs:
        numbers = [
            first(lambda n, one=sign, kind=kind: _of(find_noise(one * n), kind), 90)
            for kind in ("nothing", "no letter")
        ]
        cases[repr(sign)] = [str(numbers)]
    for end in ("a", "7", "", "\U0001f600"):
        cases[f"marks and {end!r}"] = [
            short(find_noise("!?%&$\u20ac" * 20 + end)),
            short(find_noise("!?%" + end)),
            short(find_noise("!?" + end)),
        ]
    compare("output_noise", cases)


def _of(found: Garbage | None, text: str) -> Garbage | None:
    return found if found and found.detail.startswith(text) else None


def test_mixed_writing_and_missing_grammar_have_stored_limits() -> None:
    scripts = {
        "greek": "\u03bb\u03cc\u03b3\u03bf\u03c2",
        "cyrillic": "\u0441\u043b\u043e\u0432\u043e",
        "thai": "\u0e04\u0e33",
        "chinese": "\u8bcd\u8bed",
        "japanese": "\u3053\u3068\u3070",
    }
    plain = prose(40, 6).lower().replace(".", "").split()
    cases = {}
    for name, word in scripts.items():
        beside = scripts["cyrillic" if name != "cyrillic" else "greek"]

        def jumping(n: int, word: str = word, beside: str = beside) -> Garbage | None:
            return find_salad(" ".join([*plain[:60], *[word, beside] * n]))

        def among(n: int, word: str = word) -> Garbage | None:
            return find_salad(" ".join(f"{one} {word if at < n else ''}" for at, one in enumerate(plain[:100])))

        def inside(n: int, word: str = word) -> Garbage | None:
            return find_salad(" ".join(f"{one}{word if at < n else ''}" for at, one in enumerate(plain[:200])))

        def alone(n: int, word: str = word, beside: str = beside) -> Garbage | None:
            return find_salad(" ".join([word, beside] * n)[: 6 * 2 * n])

        numbers = [first(each, 60) for each in (jumping, among, inside, alone)]
        cases[name] = [
            f"{n}: {short(each(n))}" for n, each in zip(numbers, (jumping, among, inside, alone), strict=True)
        ]
    few = first(lambda n: find_salad(" ".join(f"{one} {scripts['chinese']}" for one in plain[:n])), 60)
    short_pairs = first(lambda n: find_salad(" ".join([scripts["greek"], scripts["cyrillic"]] * n)), 30)
    lone = f"{' '.join(plain[:100])} " + ", ".join(f'"{scripts["chinese"]}"' for _n in range(30))
    cases["least"] = [str(few), str(short_pairs), short(find_salad(lone))]
    rare = [f"{one}{two}{three}" for one in "bcdfghjklmnp" for two in "aeiou" for three in "rstvwx"]
    for name, line in {"sentences": 6, "short": 4, "long": 45}.items():

        def sparse(n: int, line: int = line) -> Garbage | None:
            said = [rare[i : i + line] for i in range(0, n, line)]
            return find_salad("\n".join(" ".join(each) + ("." if line < 40 else "") for each in said))

        n = first(sparse, 350)
        cases[f"rare words, {name}"] = [f"{n}: {short(sparse(n))}"]
    common = first(lambda n: None if find_salad(" ".join([*rare[:200], *["it"] * n]) + ".") else _ANY, 60)
    twice = [short(find_salad(" ".join([*rare[: 250 - n], *rare[:n]]) + ".")) for n in (9, 10)]
    cases["common"] = [str(common), *twice]
    for sign in (",", ";", "=", "{", "|"):
        cases[f"lines with {sign}"] = [
            str(
                first(
                    lambda n, one=sign: (
                        None if find_salad(" ".join(w + one * (i < n) for i, w in enumerate(rare[:200]))) else _ANY
                    ),
                    80,
                )
            )
        ]
    usual = prose(40, 8).lower().replace(".", "").split()
    for name, known in {"few articles": 20, "many": 300}.items():
        text = [one for one in usual if one not in ("the", "a", "an")][:200]

        def wrong(n: int, known: int = known, text: list[str] = text) -> Garbage | None:
            good = ["the node"] * (known // 20)
            return find_salad(" ".join([*text, *good, *["a of"] * n]) + ".")

        n = first(wrong, 40)
        cases[f"articles, {name}"] = [f"{n}: {short(wrong(n))}"]
    foreign = " ".join([*rare[:200], scripts["thai"]]) + "."
    cases["thai has no spaces"] = [short(find_salad(foreign)), short(find_salad(" ".join(rare[:200]) + "."))]
    cases["all of one"] = [each.kind for each in judge_text("retire " * 300)]
    compare("output_salad", cases)


def test_a_stream_is_stopped_where_the_stored_text_says() -> None:
    chunks = ["!", "a", "ab", " word", "-", "- ", "12", "0", "\\x0f", "\u8bcd", "\n"]
    streams = {repr(chunk): [chunk] * 300 for chunk in chunks}
    streams["other first"] = ["We", " need", *["!"] * 60]
    streams["broken in between"] = [*["!"] * 31, "?", *["!"] * 40]
    for size in (1, 7, 400, 1000):
        text = prose(60, 11)[:3000] + "We need to see. " * 120
        streams[f"sentences by {size}"] = [text[i : i + size] for i in range(0, len(text), size)]
    streams["late noise"] = [*re.findall(".{1,50}", prose(60, 12)[:3000]), *["\ufffda"] * 300]
    streams["few words"] = [f"{one} " for one in words(900, 10).split()]
    streams["empty ones"] = ["", *["!", ""] * 60]
    said = {}
    for name, stream in streams.items():
        guard = StreamGuard()
        number = next((i for i, chunk in enumerate(stream, start=1) if guard.feed(chunk)), 0)
        said[name] = [f"chunk {number} of {len(stream)}: {short(guard.finding)}"]
    compare("output_streams", said)
