# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the table of versions in docs/upgrade.md is that of the files that CI and the lab use."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import EXAMPLE
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.node_rules import TESTED_LINES

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8").partition("| part | supported | tested |")[2]
LAB = json.loads((ROOT / "lab" / "kubernetes" / "versions.json").read_text(encoding="utf-8"))
ROWS = {row.split("|")[1].strip(): row for row in TABLE.partition("\n\n")[0].splitlines()[2:]}


def test_the_cores_are_those_of_ci() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    pairs = set(re.findall(r'core: "([\d.]+)", python: "([\d.]+)"', ci))
    (between,) = re.findall(r"tests/core ([\d.]+)", ci)
    cores = {core for core, _python in pairs} | {between}
    assert set(re.findall(r"\d\.\d\d", ROWS["ansible-core"])) == cores
    for core, python in pairs:
        assert f"{python} with {core}" in ROWS["Python of the controller"]
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    assert runtime["requires_ansible"].removeprefix(">=").startswith(min(cores))


def test_a_pull_request_plays_what_ships_and_what_a_reader_sees() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    played = {one["play"] for one in jobs["shipped"]["strategy"]["matrix"]["include"]}
    tests = {
        f"{name}/{path.stem[5:]}" for name in ("browser", "monitoring") for path in ROOT.glob(f"tests/{name}/test_*.py")
    }
    assert played == {"artifact"} | tests
    weekly = " ".join(step.get("run", "") for step in jobs["weekly"]["steps"]).split()
    for one in jobs["shipped"]["strategy"]["matrix"]["include"]:
        assert set(one["packages"].split()) <= set(weekly), one["play"]
    checked = {(one["core"], one["python"]) for one in jobs["sanity"]["strategy"]["matrix"]["include"]}
    assert checked == {("2.20", "3.12"), ("2.20", "3.14")}
    # The check that a branch requires waits for every job that is not of the schedule alone.
    own = {
        name
        for name, job in jobs.items()
        if "schedule" not in str(job.get("if", "")) and "list_plays" not in job.get("needs", [])
    }
    assert set(jobs["all_green"]["needs"]) == own - {"all_green"}
    assert jobs["all_green"]["steps"][0]["run"].count("success") == len(own) - 1


def test_kubernetes_is_that_of_the_lab() -> None:
    releases = [LAB["k3s"], *LAB["lines"]]
    assert set(re.findall(r"v[\d.]+\+k3s\d+", ROWS["K3s"])) == set(releases)
    lines = {".".join(map(str, line)) for line in TESTED_LINES}
    assert {release.removeprefix("v").rpartition(".")[0] for release in releases} == lines
    assert set(re.findall(r"v(\d\.\d\d)(?!\.)", ROWS["K3s"])) == lines
    assert LAB["k3s"].removeprefix("v").partition("+")[0] in ROWS["clusters of others"]
    defaults = yaml.safe_load((ROOT / "roles" / "k3s" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    assert defaults["k3s_version"] == LAB["k3s"] == EXAMPLE


@pytest.mark.parametrize("release", [LAB["k3s"], *LAB["lines"]])
def test_a_release_of_the_lab_is_built_from_its_own_sources(release: str) -> None:
    version = release.removeprefix("v").partition("+")[0]
    line = version.rpartition(".")[0]
    path = "components/go.mod" if release == LAB["k3s"] else f"lines/{line}.mod"
    text = (ROOT / "lab" / "kubernetes" / path).read_text(encoding="utf-8")
    assert f"\tk8s.io/kubernetes v{version}\n" in text
    staged = set(re.findall(r"(?m)^\tk8s\.io/\S+ => k8s\.io/\S+ (v\S+)$", text))
    assert staged == {f"v0{version.removeprefix('1')}"}


def test_what_both_modules_of_the_lab_need_is_compiled_once() -> None:
    # Go shares a compiled package if it and all that it imports are required in the same version: with -trimpath the
    # required version is part of the cache's key, also where the module is replaced.
    required = []
    for name in ("components", "node"):
        text = (ROOT / "lab" / "kubernetes" / name / "go.mod").read_text(encoding="utf-8")
        required.append(set(re.findall(r"(?m)^\t(\S+) (v\S+)", text)))
    only_here, only_there = (dict(one - other) for one, other in (required, required[::-1]))
    assert len(required[0] & required[1]) > 100
    assert not only_here.keys() & only_there.keys()


def test_the_releases_of_sglang_are_those_with_a_catalogue() -> None:
    oldest = min(Version.parse(path.stem) for path in (ROOT / "plugins" / "profiles" / "catalogue").glob("*.json"))
    assert f"| from {oldest} to the newest in `plugins/profiles/catalogue` |" in ROWS["SGLang"]


def test_nothing_that_follows_the_newest_release_of_sglang_names_it() -> None:
    newest = str(max(Version.parse(path.stem) for path in (ROOT / "plugins" / "profiles" / "catalogue").glob("*.json")))
    places = ("README.md", "CONTRIBUTING.md", "Makefile", "docs/upgrade.md", "scripts/*", ".github/workflows/*.yml",
              "roles/*/defaults/main.yml", "roles/*/meta/argument_specs.yml", "meta/shared_variables.yml",
              "plugins/modules/*.py", "playbooks/*.yml")  # fmt: skip
    files = [path for place in places for path in ROOT.glob(place) if path.is_file()]
    assert not [str(path) for path in files if newest in path.read_text(encoding="utf-8")]


def test_the_oldest_core_and_python_are_named_alike_everywhere() -> None:
    (core,) = re.findall(r"\| ([\d.]+) or newer \|", ROWS["ansible-core"])
    (python,) = re.findall(r"\| ([\d.]+) or newer \|", ROWS["Python of the controller"])
    roles = {path: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob("roles/*/meta/main.yml")}
    wrong = [str(path) for path, meta in roles.items() if meta["galaxy_info"]["min_ansible_version"] != core]
    assert roles
    assert not wrong
    image = (ROOT / "execution-environment.yml").read_text(encoding="utf-8")
    assert f"ansible-core>={core}}}" in image
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"needs ansible-core {core} or newer" in readme
    assert f"need Python {python} or newer" in readme
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert settings["ruff"]["target-version"] == "py" + python.replace(".", "")
    assert settings["mypy"]["python_version"] == python
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert re.search(rf'ansible-core=={re.escape(core)}\.\d+; python_version < "3\.12"', pins)


def pins(name: str) -> set[tuple[str, str]]:
    """Return the names and versions of a file of requirements. In a lock, each needs the hashes of its files."""
    lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = [line for line in lines if line and not line.startswith(("#", "-r"))]
    if name.endswith(".lock"):
        assert [line for line in found if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", line)] == []
    return {(pin[1].lower(), pin[2]) for line in found if (pin := re.match(r"([\w.-]+)==([\w.!]+)", line))}


def test_what_make_installs_is_what_is_pinned_and_has_hashes() -> None:
    """Write a lock again, with the command at its beginning, if a pin changes; that of the tests has the rest."""
    tools, tests = pins("requirements.lock"), pins("requirements-dev.lock")
    assert pins("requirements.txt") < tools
    assert pins("requirements-dev.txt") < tests
    assert {name for name, _version in tools} & {name for name, _version in tests} == set()
    installs = [line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "pip install" in line]
    assert all("--require-hashes" in line and ".txt" not in line for line in installs)
