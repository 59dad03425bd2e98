# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sample outputs: broken ones in all known forms, and healthy ones that look unusual."""

import json
import random
import string
from collections.abc import Sequence
from itertools import product
from pathlib import Path

RANDOM = random.Random(7)
SCRIPTS = json.loads((Path(__file__).resolve().parents[1] / "fixtures/output/scripts.json").read_text())
LANGUAGES: dict[str, str] = SCRIPTS["languages"]
WORDS: list[str] = SCRIPTS["words"]
FUNCTION: list[str] = SCRIPTS["function_words"]


def prose(sentences: int, seed: int = 1) -> str:
    """Return sentences with the word statistics of natural language, and as much grammar as articles need."""
    rng = random.Random(seed)
    out = []
    for _unused in range(sentences):
        body: list[str] = []
        for _unused_too in range(rng.randint(7, 18)):
            noun = body and body[-1] in ("the", "a", "an")
            body.append(rng.choice(WORDS if noun or rng.random() >= 0.5 else FUNCTION))
        out.append(" ".join(body).capitalize() + ".")
    return " ".join(out)


def drawn(tokens: Sequence[str], count: int, joint: str = " ", seed: int = 3) -> str:
    """Return random tokens, each drawn independently."""
    rng = random.Random(seed)
    return joint.join(rng.choice(tokens) for _unused in range(count))


def pi(digits: int) -> str:
    """Return pi, by Gibbons' algorithm."""
    q, r, k, n = 1, 0, 1, 3
    t, step, out = 1, 3, ""
    while len(out) < digits:
        if 4 * q + r - t < n * t:
            out += str(n)
            q, r, n = 10 * q, 10 * (r - n * t), (10 * (3 * q + r)) // t - 10 * n
        else:
            q, r, t, k, n, step = (
                q * k, (2 * q + r) * step, t * step, k + 1, (q * (7 * k + 2) + r * step) // (t * step), step + 2,
            )  # fmt: skip
    return f"{out[0]}.{out[1:]}"


PI = pi(2000)

INTRO = "The CAP theorem says that a distributed store gives up one of three promises when the network is cut.\n\n"

ACTIONS, THINGS = WORDS[:18], WORDS[18:40]

VERBS = ("get", "set", "load", "save", "check")

GARBAGE: dict[str, str] = {
    "bang": "!" * 3072,
    "functions-renamed": "\n\n".join(
        f'def {a}_{b}({b}):\n    """{a.title()} the {b}."""\n    if {b} is None:\n        return\n    {b}.{a}("{b}")'
        for a in ACTIONS
        for b in THINGS[:5]
    ),
    "bang-short": "!!!!",
    "bang-spaced": "! " * 700,
    "bang-after-warm-up": INTRO + "!" * 400,
    "question-marks": INTRO + "?" * 80,
    "one-word": INTRO + "the " * 400,
    "one-word-no-blank": INTRO + "token" * 200,
    "two-words": INTRO + "yes no " * 150,
    "one-letter": "a" * 1500,
    "digits": "0" * 2000,
    "digits-spaced": "1 " * 1200,
    "newlines": "Answer:\n" + "\n" * 3000,
    "dashes": INTRO + "-" * 3000,
    "sentence": INTRO + "We need to consider the network. " * 30,
    "paragraph": INTRO + (prose(4, 3) + "\n\n") * 5,
    "answer-thrice": (prose(12, 4) + "\n") * 3,
    "list-line": INTRO + "- Check the cable and the port state.\n" * 25,
    "code-line": "```python\nimport os\n" + "    value = compute(value)\n" * 60,
    "brackets": INTRO + ")]}" * 60,
    "numbered-loop": "".join(f"{i}. Restart the node and check the network again and again.\n" for i in range(1, 120)),
    "counter-loop": "".join(f"Step {i}: we look at the node again and then we go on with it. " for i in range(120)),
    "wait": "Let me think about this. " + "Wait, no. " * 60,
    "stutter": "The rank retire retire retire here, and then stop stop stop rambling, "
    "while thinking thinking thinking of the self self self correction again again again.",
    "sentences-in-turn": " ".join(
        RANDOM.choice(
            ["The node is ready for the work.", "We check the node once more.", "The network is fine for us."]
        )
        for _unused in range(90)
    ),
    "emoji": "\N{GRINNING FACE}" * 200,
    "emoji-after-text": INTRO + "\N{ROCKET}" * 60,
    "chinese-loop": SCRIPTS["chinese_loop"] * 40,
    "arabic-loop": SCRIPTS["arabic_loop"] * 30,
    "replacement-characters": INTRO + "\ufffd" * 40,
    "control-characters": "".join(chr(RANDOM.randint(1, 8)) + "x" for _unused in range(60)),
    "unk-tokens": "<unk>" * 100,
    "pad-after-text": INTRO + "<pad>" * 100,
    "end-tokens": "<|endoftext|>" * 40,
    "byte-tokens": "<0xE2><0x80>" * 60,
    "mixed-scripts": " ".join(RANDOM.choice(SCRIPTS["mixed_scripts"]) for _unused in range(200)),
    "scripts-in-words": " ".join(RANDOM.choice(SCRIPTS["mixed_words"]) + RANDOM.choice("abc") for _unused in range(60)),
    "random-words": " ".join(
        "".join(RANDOM.choice("bcdfghklmnprst") + RANDOM.choice("aeiou") for _unused in range(RANDOM.randint(2, 4)))
        for _unused in range(300)
    ),
    "words-from-a-hat": drawn(WORDS + FUNCTION, 500),
    "words-from-a-hat-after-an-answer": prose(8, 5) + "\n\n" + drawn([*WORDS[:20], "the", "of", "if"], 350, seed=4),
    "empty": "",
    "blank": "   \n\n ",
}

POEM = """The packet left at break of day,
And no one saw it on its way;
The switch was warm, the cable long,
The counter hummed its quiet song.

The packet came at fall of night,
And every rank was glad of light;
The switch was warm, the cable long,
The counter hummed its quiet song.
"""

VILLANELLE = """Do not let the link go down tonight,
The ring is closed, the ranks are all in line;
Hold, hold the port until the morning light.

The switch has buffers yet for one more fight,
The lanes are trained, the errors read as nine;
Do not let the link go down tonight.

The head sends out its tokens, left to right,
And every worker answers with a sign;
Hold, hold the port until the morning light.

Do not let the link go down tonight.
Hold, hold the port until the morning light.
"""

IN_ONE_BREATH = """so i went down to the harbour because my brother had told me that the boat would leave before
it was light and i thought that if i came early enough they would let me go with them although i had never been on the
water and did not know what one does there but when i came to the stairs there was nobody and the boat lay where it had
been the day before and the water was quite still and i sat down on the stone and waited and after a while an old man
came with a lamp and asked me what i was waiting for and i said that i was waiting for the boat and he said that the
boat would not leave that day nor the next because the man who owned it had gone to the town to see about his leg and
nobody knew when he would be back and so we sat there the two of us and looked at the water and he told me about the
war and about his wife and about the winter when the harbour was frozen and one could walk to the island and back"""

TWELVE = [
    "partridge",
    "turtle doves",
    "French hens",
    "calling birds",
    "gold rings",
    "geese a-laying",
    "swans a-swimming",
    "maids a-milking",
]

HEALTHY: dict[str, str] = {
    **{f"language-{name}": text for name, text in LANGUAGES.items()},
    "one-word": "Yes",
    "number": "42",
    "short-sentence": "It is seven.",
    "prose-short": prose(3),
    "prose-long": prose(120, 2),
    "long-reasoning": "\n\n".join(
        f"Wait, let me check case {i}. {prose(3, 100 + i)} So that does not hold; let me reconsider." for i in range(25)
    ),
    "numbered-list": "\n".join(f"{i}. {WORDS[i % len(WORDS)].capitalize()}: {prose(1, i)}" for i in range(1, 40)),
    "bullet-list": "\n".join(f"- **{w}**: {prose(1, 200 + i)}" for i, w in enumerate(WORDS)),
    "word-list": ", ".join(f"{a}-{b}" for a in WORDS[:12] for b in WORDS[12:24]),
    "table": "| node | address | rate |\n|------|---------|------|\n"
    + "".join(f"| spark{i} | 10.100.0.{i} | {i * 37 % 100}.{i % 10} |\n" for i in range(1, 90)),
    "wide-table-header": "|" + " column |" * 3 + "\n|" + ":--------|" * 14 + "\n" + prose(3, 21),
    "multiplication-table": "\n".join(" ".join(f"{i * j:4d}" for j in range(1, 13)) for i in range(1, 13)),
    "multiplication-lines": "\n".join(f"{i} x {j} = {i * j}" for i in range(1, 11) for j in range(1, 11)),
    "primes": ", ".join(str(n) for n in range(2, 900) if all(n % d for d in range(2, int(n**0.5) + 1))),
    "count-to-300": " ".join(map(str, range(1, 301))),
    "json": "[\n"
    + ",\n".join(f'  {{"name": "node{i}", "type": "string", "enabled": true, "port": {3000 + i}}}' for i in range(60))
    + "\n]",
    "yaml": "\n".join(
        f"- name: spark{i}\n  address: 10.100.0.{i}\n  mtu: 9000\n  rails: [rail0, rail1]" for i in range(1, 40)
    ),
    "csv": "host,rail,address\n" + "\n".join(f"spark{i},rail{r},10.10{r}.0.{i}" for i in range(1, 60) for r in (0, 1)),
    "zero-matrix": "import numpy as np\nm = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 10 + "]\nprint(m)",
    "hash-of-zeros": "The genesis block points to " + "0" * 64 + ", a block that does not exist.",
    "hex-dump": "\n".join(f"{i:08x}: 00 00 00 00 00 00 00 00  {i * 7919:016x}" for i in range(0, 640, 16)),
    "base64": "```\n"
    + "\n".join("".join(RANDOM.choice("ABCDEFGHabcdefgh0123+/") for _unused in range(64)) for _unused in range(20))
    + "\n```",
    "dna": "".join(RANDOM.choice("ACGT") for _unused in range(900)),
    "rules": "Title\n" + "=" * 80 + "\n" + prose(2) + "\n" + "-" * 120 + "\n" + prose(2, 9),
    "contents-with-leaders": "\n".join(f"{i}. {WORDS[i].capitalize()} {'.' * 60} {i * 11}" for i in range(20)),
    "box": "+" + "-" * 40 + "+\n" + "".join(f"|{w:^40}|\n" for w in WORDS[:20]) + "+" + "-" * 40 + "+\n",
    "tree": "\n".join("│   " * (i % 4) + "├── " + w + ".py" for i, w in enumerate(WORDS)),
    "progress-bars": "\n".join(f"{w:12} {'█' * (i * 3 % 40)}{'░' * (40 - i * 3 % 40)}" for i, w in enumerate(WORDS)),
    "python": '"""Sort."""\n\n\ndef merge(a, b):\n    out = []\n    while a and b:\n'
    "        out.append((a if a[0] < b[0] else b).pop(0))\n"
    "    return out + a + b\n\n\ndef sort(xs):\n    if len(xs) < 2:\n        return xs\n    m = len(xs) // 2\n"
    "    return merge(sort(xs[:m]), sort(xs[m:]))\n",
    "c-switch": "switch (c) {\n"
    + "".join(f"    case {i}:\n        return handle_{w}(c);\n" for i, w in enumerate(WORDS))
    + "}\n",
    "assertions": "\n".join(f"    self.assertEqual(add({i}, {i * 3}), {i * 4})" for i in range(40)),
    "html-list": "<ul>\n" + "".join(f'  <li class="item"><a href="#{w}">{w}</a></li>\n' for w in WORDS) + "</ul>\n",
    "sql": "\n".join(f"INSERT INTO nodes (id, name, rail) VALUES ({i}, 'spark{i}', {i % 2});" for i in range(1, 60)),
    "shell-log": "\n".join(
        f"64 bytes from 10.100.0.2: icmp_seq={i} ttl=64 time=0.{i * 37 % 900:03d} ms" for i in range(1, 60)
    ),
    "latex": r"\begin{align}"
    + "\n"
    + "\n".join(rf"  x_{{{i}}} &= \frac{{{i}}}{{{i + 1}}} + x_{{{i - 1}}} \\" for i in range(1, 30)),
    "poem-with-refrain": POEM,
    "villanelle": VILLANELLE,
    "laughing": "Ha ha ha ha, no no no, that is very, very funny! La la la la, sang the switch. " + prose(6, 11),
    "bottles": "".join(
        f"{i} bottles of beer on the wall, {i} bottles of beer. Take one down and pass it around, "
        f"{i - 1} bottles of beer on the wall.\n"
        for i in range(99, 0, -1)
    ),
    "cumulative-song": "\n\n".join(
        f"On day {d + 1} my true love gave to me\n" + "\n".join(f"{n + 1} {TWELVE[n]}" for n in range(d, -1, -1))
        for d in range(len(TWELVE))
    ),
    "greetings-in-many-scripts": "\n".join(
        f"- {name.capitalize()}: {text.split()[0]}" for name, text in LANGUAGES.items()
    ),
    "translations": "\n\n".join(f"{name.capitalize()}:\n{text}" for name, text in LANGUAGES.items()),
    "chinese-with-english": SCRIPTS["chinese_with_english"] + LANGUAGES["chinese"],
    "emoji-in-text": "Great question! \N{ROCKET} Let us start \N{SPARKLES}\N{SPARKLES}\n\n" + prose(4, 12),
    "dialogue": "\n".join(f'"{prose(1, 300 + i)}" said {"Ann" if i % 2 else "Ben"}.' for i in range(30)),
    "chat-template": "The template writes <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n and so on. "
    + prose(5, 13),
    "scream": "Noooooooooooooooo! Aaaaaaargh!!! That was the last cable. " + prose(3, 14),
    "steps": "\n\n".join(
        f"## Step {i}\n\n{prose(3, 400 + i)}\n\n```bash\nip link show enp1s0f0v{i}\n```" for i in range(12)
    ),
    "access-log": "\n".join(
        f"2026-03-02 08:{i // 60:02}:{i % 60:02} INFO gateway answered request {i * 7919 % 9973} in {i * 37 % 211} ms"
        for i in range(200)
    ),
    "true-or-false": "\n".join(f"{i}. {'True' if i * 7 % 10 < 7 else 'False'}" for i in range(1, 61)),
    "test-results": "\n".join(f"{i}. {'FAIL' if i in (8, 31) else 'pass'}" for i in range(1, 51)),
    "all-passed": "\n".join(f"{i}. pass" for i in range(1, 41)),
    "maze": "###########\n#     #   #\n# ### # # #\n# #   # # #\n# # ### # #\n# #     # #\n# ####### #\n#         #\n"
    "###########\n",
    "rectangle": "**********\n" + "*        *\n" * 4 + "**********\n",
    "prayer": "First decade\n\n"
    + "Hail Mary, full of grace, the Lord is with thee.\n" * 10
    + "Glory be to the Father.",
    "prayer-to-the-end": "Say it ten times:\n\n" + "Hail Mary, full of grace, the Lord is with thee.\n" * 10,
    "half-open-intervals": "\n".join(f"({i / 4:.2f}, {(i + 1) / 4:.2f}]    {i * 31 % 97}" for i in range(140)),
    "in-one-breath": " ".join(IN_ONE_BREATH.split()),
    "squares-in-words": "\n".join(f"The square of the number {i} is {i * i}." for i in range(1, 160)),
    "squares-in-a-line": " ".join(f"The square of the number {i} is {i * i}." for i in range(1, 100)),
    "pi-alone": PI,
    "pi-in-lines": "\n".join(PI[i : i + 50] for i in range(0, 1500, 50)),
    "passwords": "\n".join(drawn(string.ascii_letters, 16, "", i) for i in range(60)),
    "mocking-case": "".join(c.upper() if i % 2 else c for i, c in enumerate(prose(30).lower())),
    "arrow-functions": "\n".join(
        f"const {verb}{noun} = (one) => one.{verb}({', '.join('abc'[: i % 4])}){'.value' * (i % 3)};"
        for i, (verb, noun) in enumerate(product(VERBS, ("User", "Order", "Item", "Cart", "Price", "Tax", "Sum")))
    ),
    "random-numbers": drawn([str(i) for i in range(1, 1000)], 400, ", "),
    "random-numbers-in-lines": "\n".join(drawn([str(i) for i in range(10)], 12, " ", i) for i in range(60)),
    "measurements": "\n".join(drawn([f"{i / 7:.3f}" for i in range(300)], 6, "\t", i) for i in range(80)),
    "dates": drawn([f"2026 {m:02} {d:02}" for m in range(1, 13) for d in range(1, 29)], 120, "\n"),
    "dna-in-lower-case": "\n".join(drawn("acgt", 60, "", i) for i in range(25)),
    "codes": drawn([drawn("abcdefghjkmnpqrstuvwxyz", 8, "", i) for i in range(200)], 200, "\n"),
    "getters-and-setters": "\n\n".join(
        f"    public String get{w.title()}() {{\n        return {w};\n    }}\n\n"
        f"    public void set{w.title()}(String {w}) {{\n        this.{w} = {w};\n    }}"
        for w in WORDS[:24]
    ),
    "this-file": Path(__file__).read_text(),
    "names": "\n".join(f"{a.capitalize()} {b.capitalize()}son" for a in WORDS for b in WORDS[:5]),
}
