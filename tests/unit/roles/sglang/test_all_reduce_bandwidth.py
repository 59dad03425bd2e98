# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the calculations and refusals of the bandwidth script; tests/gpu runs it on GPUs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles" / "sglang" / "files" / "all_reduce_bandwidth.py"
_SPEC = importlib.util.spec_from_file_location("all_reduce_bandwidth", SCRIPT)
assert _SPEC
assert _SPEC.loader
all_reduce_bandwidth = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(all_reduce_bandwidth)
RANK = ("--rank", "0", "--ranks", "2", "--address", "127.0.0.1", "--port", "1")


def test_the_figures_are_those_of_nccl_tests() -> None:
    # 1 GB in 50 ms: algbw = size / time, busbw = algbw * 2 (n - 1) / n.
    assert all_reduce_bandwidth.bandwidth(10**9, 0.05, 2) == {"algbw": 20.0, "busbw": 20.0}
    assert all_reduce_bandwidth.bandwidth(10**9, 0.05, 4) == {"algbw": 20.0, "busbw": 30.0}


def test_percentiles_are_of_all_rounds() -> None:
    assert all_reduce_bandwidth.percentiles([float(n) for n in range(201)]) == {"p50": 100.0, "p99": 198.0}
    assert all_reduce_bandwidth.LATENCY_SIZES == (4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)


@pytest.mark.parametrize("size", ["0", "4000000001"])
def test_a_buffer_out_of_bounds_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        all_reduce_bandwidth.parse_arguments([*RANK, "--bytes", size])
    assert "must be 1 to 4000000000" in capsys.readouterr().err


def test_an_image_without_pytorch_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('as in an image without it')\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *RANK, "--bytes", "1000"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "no PyTorch" in done.stderr
