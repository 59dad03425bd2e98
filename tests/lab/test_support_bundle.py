# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test playbook support_bundle on a broken group with planted secrets, as an ordinary user with sudo."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from labcommand import LabCommand, changed
from sitecommand import Site

TWO = {"topology": {"nodes": 2, "tp": 2}}
HF_TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx"
API_KEY = "sk-of-the-lab-4711"
WIFI = "correct horse battery"
NETPLAN = f'network: {{wifis: {{wlP9s9: {{access-points: {{Home: {{password: "{WIFI}"}}}}}}}}}}'


def read(path: Path) -> dict[str, str]:
    """Return the files of an archive by their place in it."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None
            found[member.name.partition("/")[2]] = stream.read().decode()
    return found


def newest(site: Site) -> Path:
    return max((site.lab.results / "support").glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def site(make_lab: Callable[[], LabCommand]) -> Site:
    made = Site.deployed(
        make_lab(), nodes=2, serving_plan_overrides=TWO, gateway_api_key=API_KEY, sglang_hf_token=HF_TOKEN
    )
    made.play("serve")
    return made


def test_the_bundle_of_a_broken_group_has_the_cause_and_no_secret(site: Site) -> None:
    token = site.lab.shell("spark1", "cat /etc/rancher/k3s/agent-token").strip()
    site.lab.shell("spark1", f"umask 077; echo '{NETPLAN}' > /etc/netplan/99-wifi.yaml")
    lines = f"token {token}\nAuthorization: Bearer {API_KEY}"
    site.lab.shell("spark1", f"mkdir -p /var/log/gb10/a/b; echo '{lines}' > /var/log/gb10/a/b/c.log")
    head, worker = (f"statefulset/{site.group}-{rank}" for rank in (0, 1))
    site.kubectl("set", "env", head, worker, "-c", "sglang", "NCCL_NET=Missing", f"MY_TOKEN={HF_TOKEN}")
    site.kubectl("delete", "pod", "-l", f"gb10.cluster/instance={site.group},gb10.cluster/rank")
    said = site.play("support_bundle")
    assert changed(said) == 1
    path = newest(site)
    assert path.stat().st_mode & 0o777 == 0o600
    files = read(path)
    print(files["INDEX.md"])
    whole = json.dumps(files)
    keys = site.kubectl("config", "view", "--raw", "-o", "jsonpath={.users[*].user.client-key-data}").split()
    for secret in (token, API_KEY, HF_TOKEN, WIFI, *keys):
        assert secret and secret not in whole
    # The planted files were read: without this, a bundle without them would pass.
    for name, planted in (("netplan", "99-wifi.yaml"), ("group_logs", "gb10/a/b/c.log")):
        text = files[f"hosts/spark1/{name}.txt"]
        assert planted in text and "<removed>" in text.partition(planted)[2][:200]
    assert "NCCL_NET" in files["cluster/pods.txt"] and "Missing" in files["cluster/pods.txt"]
    assert "gb10.cluster/transport" in files["cluster/pods.txt"]
    assert {"plans/fabric.json", "plans/serving.json", "hosts/spark2/netplan.txt"} < set(files)
    assert "nvidia-smi is not installed" in files["INDEX.md"]
    site.lab.shell("spark1", "rm /etc/netplan/99-wifi.yaml")
