# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy, serve, verify and measure from the installed collection, in an empty directory without the checkout."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from labcommand import CHECKOUT, LabCommand, changed
from sitecommand import Site

COVERS = (
    "galaxy.yml",
    "playbooks/profile_new.yml",
    "roles/profile_new",
    "playbooks/plan.yml",
    "playbooks/bench.yml",
    "playbooks/report.yml",
    "playbooks/sweep.yml",
)

GALAXY = Path(sys.executable).with_name("ansible-galaxy")
SERVED = {
    "sglang_service_type": "NodePort",
    "bench_workloads": [{"concurrency": 2, "max_tokens": 40, "repetitions": 1}],
}
SWEEP = {
    "name": "two-cells",
    "profile": "gemma-4-31b-it",
    "base": {"preset": "throughput"},
    "axes": {"max_running_requests": [4, 8]},
    "workloads": [{"concurrency": 2, "max_tokens": 40, "repetitions": 1}],
    "cell_minutes": 2,
}


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand], tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Build the collection, install it, and start the hosts of the example inventory that it ships."""
    built, empty = tmp_path_factory.mktemp("artifact"), tmp_path_factory.mktemp("empty")
    subprocess.run([GALAXY, "collection", "build", "--output-path", built, CHECKOUT], check=True, capture_output=True)
    (artifact,) = built.glob("*.tar.gz")
    subprocess.run([GALAXY, "collection", "install", "--no-deps", "-p", empty, artifact], check=True, cwd=empty)
    shipped = empty / "ansible_collections" / "gb10" / "cluster" / "inventory" / "4x-gb10-switch"
    lab = replace(make_lab(), collections=empty, inventory=(shipped, CHECKOUT / "inventory" / "lab"))
    lab.up(nodes=4, kubernetes=True)
    return Site(lab)


def test_site_runs_in_check_mode_and_deploys(site: Site) -> None:
    site.play("site", "--check", **SERVED)
    site.play("site", **SERVED)
    verdict = json.loads(next(site.lab.results.glob("**/transport.json")).read_text())
    assert (verdict["transport_class"], verdict["satisfied"]) == ("rdma", True)


def test_serve_and_verify_run_again_and_change_nothing(site: Site) -> None:
    for playbook in ("serve", "verify"):
        assert changed(site.play(playbook, **SERVED)) == 0


def test_bench_records_beside_the_user_s_own_files(site: Site) -> None:
    assert "2 streams: repetition 1/1: ok" in site.play("bench", **SERVED)
    assert (site.lab.results / "bench-gemma-4-31b-it.jsonl").is_file()


def test_a_sweep_of_two_cells_is_measured_and_reported(site: Site, tmp_path: Path) -> None:
    sweep = tmp_path / "two-cells.yml"
    sweep.write_text(yaml.safe_dump(SWEEP))
    site.play("sweep", sweep=str(sweep))
    records = [json.loads(line) for line in (site.lab.results / "two-cells.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records if record["kind"] == "result"] == ["ok", "ok"]
    report = site.lab.results / "two-cells.html"
    report.unlink()
    site.play("report", sweep="two-cells")
    assert report.is_file()


def test_a_profile_is_drafted_and_planned(site: Site) -> None:
    own = {"profile_new_dir": str(site.lab.state / "profiles")}
    site.play("profile_new", profile_name="mine", repo="google/gemma-4-31B-it", **own)
    # The group of the earlier tests holds the VFs of index 0.
    site.play("plan", profile="mine", preset="baseline", vf_index=1, gb10_profile_dirs=[own["profile_new_dir"]])


def test_nothing_was_written_into_the_collection_or_the_directory(site: Site) -> None:
    assert site.lab.collections is not None
    assert [path.name for path in site.lab.collections.iterdir()] == ["ansible_collections"]
    home = site.lab.collections / "ansible_collections" / "gb10" / "cluster"
    assert not list(home.glob("**/results"))
