# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy and serve with the previous release, then run this tree's playbooks over it, on two nodes.

The previous release is the newest tag, or this commit while there is none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from labcommand import CHECKOUT, LabCommand, changed
from sitecommand import Site, incarnations, revisions

COMMIT = "a4be44a"
GROUP = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}}


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a checkout of the previous release."""
    tree = tmp_path_factory.mktemp("previous") / "tree"
    newest = git("tag", "--list", "v*", "--sort=-v:refname").partition("\n")[0] or COMMIT
    git("worktree", "add", "--detach", str(tree), newest)
    yield tree
    git("worktree", "remove", "--force", str(tree))


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand], previous: Path) -> Site:
    """Return a lab that the previous release has deployed."""
    made = Site(make_lab(), values=GROUP)
    made.lab.up(2, kubernetes=True)
    for playbook in ("fabric", "kubernetes", "serve"):
        words = made.lab.playbook(str(previous / "playbooks" / f"{playbook}.yml"), **GROUP)
        done = made.lab.run("env", f"ANSIBLE_CONFIG={previous / 'ansible.cfg'}", *words)
        assert done.returncode == 0, done.stdout[-8000:]
    return made


def test_only_a_group_whose_pods_changed_is_replaced_and_as_a_whole(site: Site) -> None:
    before, earlier = site.incarnations(), revisions(site.pods())
    site.play("fabric")
    site.play("kubernetes")
    # Neither hosts, K3s nor the device plugins take the group down.
    assert site.incarnations() == before
    site.play("serve")
    same = revisions(site.pods()) == earlier
    assert (site.incarnations() == before) is same
    assert same or not incarnations(site.pods()) & before
    site.play("verify")


def test_a_second_run_of_this_release_changes_nothing(site: Site) -> None:
    before = site.incarnations()
    assert [changed(site.play(playbook)) for playbook in ("fabric", "kubernetes", "serve")] == [0, 0, 0]
    assert site.incarnations() == before
