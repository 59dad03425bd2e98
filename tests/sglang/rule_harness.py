# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the rules that a release decides by itself.

``rule_harness.py RELEASE [FILE…]`` asks the release's own resolver about every command line that an error of the rules
refuses: the rules' own cases, and launches in JSON files (lists of objects with ``sglang`` or
``release``, ``flags`` or ``argv``, ``arch``, ``quantization``). It prints one JSON object per rule and line.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "samples"))

import _sglang_environment
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import Knowledge, check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Facts, Setting
from rule_cases.cases import CASES

KNOWLEDGE = Knowledge.load(PROFILES)


def lines(release: str, files: list[Path]) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Yield origin, flags and facts of every line to try with the release."""
    for number, case in enumerate(CASES):
        if not {"gpu", "carries"} & case.known.keys():
            yield f"case {number} {case.rule}", ["--model-path", "m", *shlex.split(case.line)], dict(case.known)
    for file in files:
        for number, row in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            argv = row.get("flags") or row.get("argv")
            version = row.get("sglang") or row.get("release") or ""
            near = str(KNOWLEDGE.history.nearest(Version.parse(version))[0].version) if version else ""
            if row.get("gpu", "gb10") == "gb10" and near == release:
                known = {key: row[key] for key in ("arch", "quantization", "draft_arch") if row.get(key)}
                yield f"{file.stem} {number} {row.get('truth') or row.get('outcome')}", argv, known


def main() -> None:
    """Print what the rules and the release say about every line that the rules refuse."""
    release, files = sys.argv[1], [Path(name) for name in sys.argv[2:]]
    asked, about = [], []
    for origin, argv, known in lines(release, files):
        facts = {key: value for key, value in known.items() if key in Facts.__dataclass_fields__}
        found = check(KNOWLEDGE, release, argv, Facts(**facts), Setting(patches=())).findings
        errors = sorted({(each.rule, each.source) for each in found if each.severity == "error"})
        if errors:
            asked.append(_sglang_environment.question(argv, known))
            about.append((origin, errors))
    print(f"{release}: {len(asked)} lines", file=sys.stderr, flush=True)
    answers = _sglang_environment.ask(sglang_catalogue.unpack(release), sglang_catalogue.CACHE, asked)
    for (origin, errors), each, answer in zip(about, asked, answers, strict=True):
        told = {"release": release, "line": origin, "argv": each["argv"][2:], "arch": each["arch"]}
        print(json.dumps({**told, "rules": errors, "verdict": answer["verdict"], "message": answer["message"]}))


if __name__ == "__main__":
    main()
