# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test runtime patches on the real files of releases that need them and of releases that no longer do."""

import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Patch, load_patches

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "plugins" / "profiles" / "patches"
KNOWN = load_patches(PATCHES / "patches.json")
RELEASES = [
    str(catalogue.version) for catalogue in load_history(ROOT / "plugins" / "profiles" / "catalogue").catalogues
]
DSL_PATCH = "sm121-admissible-archs"
DSL_PIN = re.compile(r"^Requires-Dist: nvidia-cutlass-dsl(?:\[\w+\])?[>=]=([\d.]+)\s*$", re.MULTILINE)

DSL: list[tuple[str, tuple[str, ...], tuple[str, str]]] = [
    ("4.3.4", ("nvidia-cutlass-dsl",), ("not needed: this CUTLASS DSL has no SM120 block-scaled instruction",) * 2),
    ("4.4.1", ("nvidia-cutlass-dsl-libs-base",), ("applied", "already there")),
    ("4.4.2", ("nvidia-cutlass-dsl-libs-base",), ("applied", "already there")),
    ("4.4.2", ("nvidia-cutlass-dsl-libs-cu13",), ("applied", "already there")),
    ("4.5.0", ("nvidia-cutlass-dsl-libs-base",), ("not needed: this CUTLASS DSL admits sm_121a by itself",) * 2),
    ("4.8.0", ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-core"),
     ("not needed: this CUTLASS DSL admits sm_121a by itself",) * 2),
]  # fmt: skip
"""Releases of the CUTLASS DSL, the wheels with its Python sources, the patch's messages in a first and a second run."""


def needs(patch: Patch, version: str) -> bool:
    """Return whether, by the list of patches, a release needs this one."""
    return Version.parse(version).within(patch.first, patch.last)


def environment(directory: Path) -> tuple[Path, Path]:
    """Return interpreter and site-packages of a new virtual environment, which reads .pth files as in an image."""
    venv.create(directory, with_pip=False, symlinks=True)
    return directory / "bin" / "python", next(directory.glob("lib/python*/site-packages"))


def outcome(python: Path, name: str) -> tuple[int, str]:
    """Run a patch; return its exit status and its message without the patch's name."""
    done = subprocess.run([python, PATCHES / f"{name}.py"], check=False, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip().removeprefix(f"{name}: ")


def install_sglang(version: str, site: Path) -> None:
    """Copy those files of a release that patches change."""
    release = sglang_catalogue.unpack(version) / "sglang"
    for part in ("jit_kernel", "srt/layers", "srt/model_executor"):
        if (release / part).is_dir():
            shutil.copytree(release / part, site / "sglang" / part)


def install_dsl(version: str, wheels: tuple[str, ...], site: Path) -> None:
    """Copy a CUTLASS DSL's Python sources and the .pth that leads to them, downloaded on the first call."""
    for name in wheels:
        cached = sglang_catalogue.CACHE / f"{name}-{version}"
        if not (cached / "complete").exists():
            wheel = sglang_catalogue.download(name, version, sglang_catalogue.CACHE / "wheels")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [member for member in archive.namelist() if member.endswith((".pth", "/nvgpu/warp/mma.py"))]
                archive.extractall(cached, wanted)
            (cached / "complete").touch()
            wheel.unlink()
        shutil.copytree(cached, site, dirs_exist_ok=True)


@pytest.mark.parametrize("version", [version for version in RELEASES if any(needs(patch, version) for patch in KNOWN)])
def test_patches_apply_to_every_release_that_needs_them(version: str, tmp_path: Path) -> None:
    python, site = environment(tmp_path)
    install_sglang(version, site)
    for patch in KNOWN:
        if patch.name != DSL_PATCH and needs(patch, version):
            assert outcome(python, patch.name) == (0, "applied")
            assert outcome(python, patch.name) == (0, "already there")


@pytest.mark.parametrize(
    "patch", [patch for patch in KNOWN if patch.last and patch.name != DSL_PATCH], ids=lambda patch: patch.name
)
def test_the_release_after_a_patchs_last_one_does_not_need_it(patch: Patch, tmp_path: Path) -> None:
    last = max(number for number, version in enumerate(RELEASES) if needs(patch, version))
    python, site = environment(tmp_path)
    install_sglang(RELEASES[last + 1], site)
    status, said = outcome(python, patch.name)
    # 0.5.16 and later keep some of the patched code, but no longer use it for NVFP4 experts
    experts = (site / "sglang/srt/layers/moe/cutlass_moe.py").read_text(encoding="utf-8")
    assert (status, said.partition(":")[0]) == (1, "not applied") or "def cutlass_moe_fp4" not in experts


@pytest.mark.parametrize(("version", "wheels", "expected"), DSL, ids=[f"{case[1][-1]}-{case[0]}" for case in DSL])
def test_the_dsl_admits_sm121_afterwards(
    version: str, wheels: tuple[str, ...], expected: tuple[str, str], tmp_path: Path
) -> None:
    python, site = environment(tmp_path)
    install_dsl(version, wheels, site)
    assert tuple(outcome(python, DSL_PATCH) for _unused in expected) == tuple((0, said) for said in expected)


def test_every_dsl_that_a_release_asks_for_was_tried() -> None:
    said = {version: expected[0] for version, _wheels, expected in DSL}
    patch = next(patch for patch in KNOWN if patch.name == DSL_PATCH)
    past = [version for version in RELEASES if not needs(patch, version)]
    for version in [*(version for version in RELEASES if needs(patch, version)), past[0], past[-1]]:
        metadata = next(sglang_catalogue.unpack(version).glob("sglang-*.dist-info/METADATA"))
        pinned = DSL_PIN.search(metadata.read_text(encoding="utf-8"))
        assert pinned is not None, version
        assert needs(patch, version) or said[pinned[1]] == "not needed: this CUTLASS DSL admits sm_121a by itself"
        assert pinned[1] in said, version
