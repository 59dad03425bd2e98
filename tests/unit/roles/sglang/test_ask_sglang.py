# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the program that asks an installed SGLang about command lines, with the lab's simulated SGLang and others."""

import base64
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from stored import compare

ROOT = Path(__file__).resolve().parents[4]
FILE = ROOT / "roles/sglang/files/ask_sglang.py"
GPU = {"name": "NVIDIA GB10", "capability": [12, 1], "count": 1, "memory": 119, "processors": 48}
LINE = ["--model-path", "/models/a--b", "--tp-size", "2", "--nnodes", "2"]


def ask(path: Path, *argvs: list[str], limit: int = 60, **env: str) -> list[dict[str, Any]]:
    """Return the answers of the program as a pod runs it, without the packages of this environment."""
    ranks = [{"rank": number, "argv": argv, "env": {}} for number, argv in enumerate(argvs)]
    files = {"/models/a--b": {"config.json": '{"architectures": ["A"]}'}}
    asked = {"gpu": GPU, "limit": limit, "files": files, "ranks": ranks}
    word = base64.b64encode(zlib.compress(json.dumps(asked).encode())).decode()
    done = subprocess.run(
        [sys.executable, "-S", "-c", FILE.read_text(), word],
        env={
            **os.environ,
            "PYTHONPATH": str(path),
            "SGLANG_STANDIN_CATALOGUES": str(ROOT / "plugins/profiles/catalogue"),
            **env,
        },
        check=True,
        capture_output=True,
        text=True,
    )
    return [json.loads(line[13:]) for line in done.stdout.splitlines() if line.startswith("gb10-verdict ")]


def simulated(*argvs: list[str], **env: str) -> list[dict[str, Any]]:
    return ask(ROOT / "lab" / "sglang", *argvs, **{"SGLANG_STANDIN_VERSION": "0.5.23", **env})


def test_the_lab_s_image_accepts_with_the_release_s_own_parser_and_says_that_it_is_simulated() -> None:
    (first, second) = simulated(LINE, [*LINE, "--chunked-prefill-size", "4096"])
    assert {first["verdict"], second["verdict"]} == {"accepted"}
    assert first["release"] == "0.5.23 (SIMULATED)"
    assert first["resolved"]["tp_size"] == 2
    assert second["resolved"]["chunked_prefill_size"] == 4096
    assert first["engine"] != second["engine"]
    assert first["seconds"] >= 0 < first["mebibytes"]


# Releases of the lab's image with lines that they refuse
LINES: dict[str, tuple[str, list[str]]] = {
    "an abbreviation": ("0.5.23", [*LINE, "--cuda-graph-max-bs", "8"]),
    "a flag of an older release": ("0.5.23", [*LINE, "--disable-piecewise-cuda-graph"]),
    "a misspelt value": ("0.5.10", [*LINE, "--speculative-algorithm", "EAGEL"]),
    "sizes that do not divide": ("0.5.10", ["--model-path", "m", "--tp-size", "4", "--nnodes", "3"]),
}
# Code of a release's check of its arguments, and what it imports
CHECKS: dict[str, str] = {
    "raise ValueError('no')": "",
    "assert self.model_path == 'm'": "",
    "raise RuntimeError('no')": "",
    "raise NotImplementedError('no')": "",
    "{}['key']": "",
    "raise ZeroDivisionError('x')": "",
    "raise ImportError('libcuda')": "",
    "raise FileNotFoundError('nvidia-smi')": "",
    "self.absent": "",
    "import sys; sys.exit(3)": "",
    "import time; time.sleep(60)": "",
    # The kernel is replaced.
    "pass": "import sgl_kernel, triton\nfrom sgl_kernel.ops import Gemm\nfrom vllm import x",
}


def release(tmp_path: Path, check: str, more: str = "") -> Path:
    """Write a small SGLang whose check runs these lines, and a kernel that needs a driver."""
    kernel = tmp_path / "sgl_kernel"
    kernel.mkdir(parents=True)
    (kernel / "__init__.py").write_text("import sgl_kernel.ops")
    (kernel / "ops.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    package = tmp_path / "sglang" / "srt"
    package.mkdir(parents=True)
    for name in (package.parent, package):
        (name / "__init__.py").write_text("")
    (package / "server_args.py").write_text(f"""
{more}
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path")
        parser.add_argument("--served")
    @classmethod
    def from_cli_args(cls, parsed):
        made = cls()
        made.__dict__.update(vars(parsed))
        return made
    def check_server_args(self):
        {check}
""")
    return tmp_path


def test_answers_of_images_are_those_that_are_stored(tmp_path: Path) -> None:
    good = ["--model-path", "m"]
    found = {name: simulated(good, line, SGLANG_STANDIN_VERSION=of) for name, (of, line) in LINES.items()}
    found["a check that crashes"] = simulated(LINE, SGLANG_STANDIN_FAULT="crash-in-check")
    found["no SGLang"] = ask(tmp_path, LINE)
    for number, (check, more) in enumerate(CHECKS.items()):
        limit = 1 if "60" in check else 60
        found[check] = ask(
            release(tmp_path / str(number), check, more), ["--model-path", "a"], ["--model-path", "b"], limit=limit
        )
    # Versions of Python list choices in different ways.
    said = "{verdict}: {message}".format_map
    compare(
        "asked_images", {name: [said(one).partition(" (choose")[0] for one in told] for name, told in found.items()}
    )


def test_an_object_is_shown_by_its_fields_as_the_server_reports_it(tmp_path: Path) -> None:
    more = "import dataclasses\n@dataclasses.dataclass\nclass Graphs:\n    sizes: tuple[int, ...] = (1, 2)"
    (answer,) = ask(release(tmp_path, "self.model_path = 'm'; self.served = Graphs()", more), ["--served", "a"])
    assert answer["resolved"]["served"] == {"sizes": [1, 2]}
    assert answer["overruled"] == {"served": ["a", {"sizes": [1, 2]}]}


def test_the_node_s_directory_is_shown_and_not_the_temporary_one(tmp_path: Path) -> None:
    check = "import os, json; raise ValueError(f'{self.model_path} {os.listdir(self.model_path)}')"
    (first, second) = ask(release(tmp_path, check), ["--model-path", "/models/a--b"], ["--model-path=/models/a--b"])
    assert first["message"] == second["message"] == "ValueError: /models/a--b ['config.json']"
