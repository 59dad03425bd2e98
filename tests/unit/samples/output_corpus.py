# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sample outputs: broken ones in all known forms, healthy ones that look unusual, and as much prose as a test needs."""

import json
import random
from pathlib import Path

OUTPUT = Path(__file__).resolve().parents[1] / "fixtures/output"
WORDS = json.loads((OUTPUT / "words.json").read_text())
CORPUS = json.loads((OUTPUT / "corpus.json").read_text())
GARBAGE: dict[str, str] = CORPUS["garbage"]
HEALTHY: dict[str, str] = CORPUS["healthy"]
INTRO = "The CAP theorem says that a distributed store gives up one of three promises when the network is cut.\n\n"


def prose(sentences: int, seed: int = 1) -> str:
    """Return sentences with the word statistics of natural language, and as much grammar as articles need."""
    rng = random.Random(seed)
    out = []
    for _unused in range(sentences):
        body: list[str] = []
        for _unused_too in range(rng.randint(7, 18)):
            noun = body and body[-1] in ("the", "a", "an")
            body.append(rng.choice(WORDS["words" if noun or rng.random() >= 0.5 else "function_words"]))
        out.append(" ".join(body).capitalize() + ".")
    return " ".join(out)
