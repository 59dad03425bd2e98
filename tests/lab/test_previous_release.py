# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deploy and serve with the previous release, then run this tree's playbooks over it, on two nodes.

The previous release is the newest tag, or this commit while there is none. A client sends requests all the time.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from labcommand import CHECKOUT, LabCommand, changed
from sitecommand import Site, incarnations, revisions

COVERS = (
    "playbooks/serve.yml",
    "playbooks/tune.yml",
    "plugins/plugin_utils/_serving",
    "plugins/module_utils/_host",
    "roles/node_tuning",
)

# The names of its objects, their labels and probes, and the fields of the ranks differ from those of today.
COMMIT = "c6202de7"
GROUP = {"serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}}, "sglang_service_type": "NodePort"}
# Sends one request after another until a file exists; prints a line for each.
CLIENT = """
import json, pathlib, sys, time, urllib.request as u
body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
asked = u.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
while not pathlib.Path(sys.argv[2]).exists():
    try:
        with u.urlopen(asked, timeout=20) as answer:
            print("answered" if json.load(answer)["choices"] else "empty")
    except OSError as error:
        print(time.strftime("%X"), error)
    time.sleep(0.2)
"""


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


@contextmanager
def requests(site: Site, stop: Path) -> Iterator[None]:
    """Send requests to the group; fail unless it has answered all of them."""
    node = site.get("node", site.pods()[0]["spec"]["nodeName"])["status"]["addresses"]
    address = next(entry["address"] for entry in node if entry["type"] == "InternalIP")
    port = site.get("service", site.group)["spec"]["ports"][0]["nodePort"]
    url = f"http://{address}:{port}/v1/chat/completions"
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(site.lab.run, sys.executable, "-c", CLIENT, url, stop)
        try:
            yield
        finally:
            stop.touch()
        done = client.result()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert set(lines) == {"answered"}, set(lines)
    print(f"{len(lines)} requests were answered")


def test_only_a_group_whose_pods_changed_is_replaced_and_as_a_whole(site: Site, tmp_path: Path) -> None:
    before, earlier = site.incarnations(), revisions(site.pods())
    with requests(site, tmp_path / "stop"):
        site.play("fabric")
        site.play("tune")
        site.play("kubernetes")
        # Neither hosts, K3s nor the device plugins take the group down.
        assert site.incarnations() == before
    site.play("serve")
    same = revisions(site.pods()) == earlier
    assert (site.incarnations() == before) is same
    assert same or not incarnations(site.pods()) & before


def test_a_second_run_of_this_release_changes_nothing(site: Site, tmp_path: Path) -> None:
    before = site.incarnations()
    with requests(site, tmp_path / "stop"):
        assert [changed(site.play(playbook)) for playbook in ("kubernetes", "serve")] == [0, 0]
    assert site.incarnations() == before
