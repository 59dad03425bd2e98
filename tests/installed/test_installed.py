# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the collection from a dirty tree, install it into an empty directory, and run it there."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

COVERS = ("galaxy.yml", "meta", "scripts", "playbooks/plan.yml", "playbooks/planned.yml", "playbooks/report.yml")

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# SHIPPED: directories of the artifact. DIRT: files that a working tree may contain and the artifact must not.
SHIPPED = ("docs", "meta", "playbooks", "plugins", "roles", "scripts")
DIRT = (
    "results/sweep.jsonl",
    "playbooks/results/backups/gb10.tar.gz",
    "inventory/mine/group_vars/all.yml",
    "inventory/4x-gb10-switch/group_vars/vault.yml",
    "roles/k3s/defaults/vault.yml",
    "plugins/modules/__pycache__/pf_info.cpython-313.pyc",
    ".lab/kubeconfig",
)


def run(*command: str | Path, cwd: Path, collections: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "HOME": str(cwd)}
    environment.pop("ANSIBLE_CONFIG", None)
    environment |= {"ANSIBLE_COLLECTIONS_PATH": str(collections)} if collections else {}
    words = list(map(str, command))
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done


def tracked(directory: str) -> list[str]:
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", directory, cwd=ROOT).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked("."):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    for name in DIRT:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("not for others\n", encoding="utf-8")
    out = tmp_path_factory.mktemp("artifact")
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", out, tree, cwd=out)
    return next(out.glob("gb10-cluster-*.tar.gz"))


@pytest.fixture(scope="module")
def collections(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    empty = tmp_path_factory.mktemp("installed")
    run(BIN / "ansible-galaxy", "collection", "install", "--no-deps", "-p", empty, artifact, cwd=empty)
    return empty


@pytest.fixture(scope="module")
def home(collections: Path) -> Path:
    return collections / "ansible_collections" / "gb10" / "cluster"


def test_the_artifact_has_all_that_ships_and_nothing_else(artifact: Path) -> None:
    with tarfile.open(artifact) as archive:
        names = {member.name for member in archive if member.isfile()}
    assert names & set(DIRT) == set()
    tops = {name.partition("/")[0] for name in names}
    assert tops & {"tests", "lab", "molecule", "results", "benchmarks", "collections", ".ci", ".github"} == set()
    # The pages of the site are built from the checkout.
    shipped = [name for top in SHIPPED for name in tracked(top) if not name.startswith("docs/site/")]
    assert [name for name in shipped if name not in names] == []


def test_everything_has_documentation(collections: Path, home: Path) -> None:
    doc = BIN / "ansible-doc"
    for kind, names in (
        ("module", [path.stem for path in (home / "plugins" / "modules").glob("*.py")]),
        ("filter", [path.stem for path in (home / "plugins" / "filter").glob("*.yml")]),
        ("callback", [path.stem for path in (home / "plugins" / "callback").glob("*.py")]),
        ("role", [path.name for path in (home / "roles").iterdir()]),
    ):
        wanted = [f"gb10.cluster.{name}" for name in names]
        shown = json.loads(run(doc, "--json", "-t", kind, *wanted, cwd=collections, collections=collections).stdout)
        assert set(shown) == set(wanted)


def test_the_documentation_follows_the_schema_of_a_documentation_site(home: Path) -> None:
    lint = ("lint-collection-docs", "--plugin-docs", "--skip-rstcheck")
    # antsibull-docs looks for ansible-doc beside this Python, and ansible-doc looks there for other collections
    shown = run(BIN / "antsibull-docs", *lint, home, cwd=home)
    assert shown.stdout.strip() == ""


def test_an_execution_environment_gets_what_the_collection_needs(
    artifact: Path, collections: Path, tmp_path: Path
) -> None:
    """Build the context of the image; a registry would be needed for the image itself."""
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text(encoding="utf-8"))
    definition["dependencies"]["galaxy"]["collections"] = [{"name": str(artifact), "type": "file"}]
    (tmp_path / "ee.yml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    run(BIN / "ansible-builder", "create", "-f", tmp_path / "ee.yml", "-c", tmp_path / "context", cwd=tmp_path)
    steps = (tmp_path / "context" / "Containerfile").read_text(encoding="utf-8")
    assert "fedora" in steps and 'PYPKG="python3"' in steps
    found = yaml.safe_load(run(BIN / "ansible-builder", "introspect", collections, cwd=tmp_path).stdout)
    wanted = (ROOT / "meta" / "ee-requirements.txt").read_text(encoding="utf-8").splitlines()
    # ansible-builder leaves out PyYAML, which every execution environment has.
    assert {one.split()[0] for one in found["python"]} == {one for one in wanted if one[0] not in "#P"}
    programs = {one.split()[0] for one in found["system"]}
    assert programs == {"openssh-clients", "openssh-client", "sshpass"}


def test_every_playbook_is_found_by_its_full_name(collections: Path, home: Path) -> None:
    playbooks = [f"gb10.cluster.{path.stem}" for path in sorted((home / "playbooks").glob("*.yml"))]
    inventory = home / "inventory" / "4x-gb10-switch"
    play = BIN / "ansible-playbook"
    run(play, "--syntax-check", "-i", inventory, *playbooks, cwd=collections, collections=collections)


def test_an_example_is_planned_with_only_the_directories_that_a_collection_may_have(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "ansible_collections" / "gb10" / "cluster"
    for name in ("meta", "playbooks", "plugins", "roles"):
        shutil.copytree(home / name, own / name)
    words = ["-i", home / "inventory" / "4x-gb10-switch", "-e", "gb10_kubeconfig=/nonexistent", "-e", "preset=latency"]
    run(BIN / "ansible-playbook", *words, "gb10.cluster.plan", cwd=tmp_path, collections=tmp_path)


def test_the_callback_shows_the_stages_of_a_run(
    collections: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CALLBACKS_ENABLED": "gb10.cluster.progress", "FORCE_COLOR": "0"}.items():
        monkeypatch.setenv(f"ANSIBLE_{name}", value)
    monkeypatch.setenv("GB10_PROGRESS", "always")
    monkeypatch.setenv("GB10_PROGRESS_FILE", str(tmp_path / "progress.json"))
    words = ["-i", home / "inventory" / "4x-gb10-switch", "-e", "gb10_kubeconfig=/nonexistent", "gb10.cluster.plan"]
    shown = [run(BIN / "ansible-playbook", *words, cwd=collections, collections=collections).stdout for _run in "12"]
    assert [" left" in text for text in shown] == [False, True]
    assert all("==> stage 1 of 1, plan, after 0:0" in text and "==> ended after" in text for text in shown)


def test_scripts_run_beside_the_installed_collection(collections: Path, home: Path) -> None:
    for script in sorted((home / "scripts").glob("[a-z]*.py")):
        run(sys.executable, script, "--help", cwd=collections)
    shown = run(
        sys.executable, home / "scripts" / "fabric_plan.py", home / "inventory" / "2x-gb10-direct", cwd=collections
    )
    assert "10.101.1.2/24" in shown.stdout
    # The tables of messages are on the site only; whoever has the artifact prints one message.
    shown = run(sys.executable, home / "scripts" / "troubleshooting.py", "k3s.first", "preflight.link", cwd=collections)
    assert "preflight.link.slow (warning)" in shown.stdout and "k3s.first.unseen (error)" in shown.stdout
