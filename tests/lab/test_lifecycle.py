# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the life of a cluster in one lab, in the order of this file: install it from the air-gap directory, add a node,
upgrade it with three interruptions, remove a node. The installation runs with -vvv and must reveal no secret.

Both releases of K3s have the same Kubernetes, which the lab then need not compile twice; test_lines.py upgrades others.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from labcommand import CHECKOUT, LabCommand
from sitecommand import VERSIONS, Site, prepare, release

COVERS = (
    "playbooks/upgrade.yml",
    "playbooks/group_stop.yml",
    "playbooks/group_start.yml",
    "playbooks/reset.yml",
    "playbooks/kubernetes.yml",
    "roles/k3s",
    "plugins/module_utils/_host",
)

NODES = 2
HOSTS = ("control", *(f"spark{number}" for number in range(1, NODES + 1)))
ADDED = f"spark{NODES + 1}"
EARLIER, LATEST = VERSIONS["k3s"], VERSIONS["k3s"].partition("+")[0] + "+k3s2"
GROUP = {"serving_plan_overrides": {"topology": {"nodes": NODES, "tp": NODES}}}
# containerd creates /opt/containerd, labctl adds new hosts to /etc/hosts, and forwarding stays on until the next boot.
MAY_DIFFER = r"^/opt/containerd|^/etc/hosts |^setting .* forwarding"
# Where the control process of the upgrade is killed: while the server is drained, while the second agent restarts,
# while the model group starts again.
POINTS = (
    r"Upgrade the servers one after another.*TASK \[[^\n]*Evict the pods\]",
    r"Upgrade the agents one after another.*ok: \[spark2.*TASK \[[^\n]*Restart the service\]",
    r"Start the model group as a whole.*TASK \[[^\n]*Apply all objects of the group\]",
)


@dataclass
class Watch:
    """Records which words appear on the command line of any process of this machine, including those of the lab."""

    words: tuple[str, ...]
    seen: set[str] = field(default_factory=set)
    rounds: int = 0
    _end: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.2):
            self.rounds += 1
            for entry in os.scandir("/proc"):
                if entry.name.isdigit():
                    try:
                        line = Path(entry.path, "cmdline").read_text(errors="replace")
                    except OSError:
                        continue  # the process has ended
                    self.seen.update(word for word in self.words if word in line)


@dataclass
class Life:
    """The lab, the user's secrets, the output of the installation, and the secrets seen on command lines."""

    site: Site
    secrets: dict[str, str]
    output: str = ""
    on_command_lines: set[str] = field(default_factory=set)
    rounds: int = 0


@pytest.fixture(scope="module")
def life(make_lab: Callable[[], LabCommand]) -> Iterator[Life]:
    """Deploy the earlier release and a group with playbook site at -vvv, with the user's own secrets."""
    prepare(EARLIER, LATEST)
    site = Site(make_lab(), values=GROUP)
    site.lab.up(nodes=NODES, kubernetes=True)
    words = {
        name: secrets.token_hex(16) for name in ("k3s_token", "k3s_agent_token", "sglang_hf_token", "registry_password")
    }
    site.before = {host: site.lab.fingerprint(host) for host in HOSTS}
    made = Life(site, words)
    given = site.lab.state / "secrets.json"
    given.touch(mode=0o600)
    registries = {"configs": {"registry.example": {"auth": {"username": "u", "password": words["registry_password"]}}}}
    given.write_text(json.dumps({**words, "k3s_registries": registries}))
    with Watch(tuple(words.values())) as watch:
        made.output = site.play("site", "-vvv", "--diff", "-e", f"@{given}", **release(EARLIER))
    made.on_command_lines, made.rounds = watch.seen, watch.rounds
    yield made


def everything_secret(life: Life) -> list[str]:
    """Return the user's secrets, the tokens that K3s derived from them, and the administrator's key."""
    tokens = life.site.lab.shell("control", "cat /var/lib/rancher/k3s/server/*token")
    kubeconfig = life.site.lab.shell("control", "cat /etc/rancher/k3s/k3s.yaml")
    key = re.search(r"client-key-data: (\S+)", kubeconfig)
    assert key
    return [*life.secrets.values(), *tokens.split(), key[1]]


def test_it_serves_from_the_air_gap(life: Life) -> None:
    assert life.site.versions() == dict.fromkeys(HOSTS, EARLIER)
    assert len(life.site.incarnations()) == NODES
    # the output is that of -vvv, and the watch ran all the time
    assert "ESTABLISH SSH CONNECTION" in life.output
    assert life.rounds > 50


def test_nothing_secret_is_in_the_output_or_on_a_command_line(life: Life) -> None:
    assert [name for name, word in life.secrets.items() if word in life.output] == []
    assert [word for word in everything_secret(life) if word in life.output] == []
    assert [name for name, word in life.secrets.items() if word in life.on_command_lines] == []


def test_nothing_secret_is_in_a_file_that_others_may_read(life: Life) -> None:
    readable = (
        "setpriv --reuid=65534 --regid=65534 --clear-groups find / /run /tmp /var/lib/rancher /var/lib/kubelet "
        "-xdev -type f -readable -size -4096k -print 2>/dev/null | sort -u || true"
    )
    words = everything_secret(life)
    for host in HOSTS:
        # properties that systemd shows to every user, the journal, and the arguments of every process
        told = life.site.lab.shell(host, "systemctl show 'k3s*'; journalctl --no-pager -q; ps -e -ww -o args=")
        assert [line for line in told.splitlines() if any(word in line for word in words)] == [], host
        patterns = life.site.lab.state / "words"
        patterns.touch(mode=0o600)
        patterns.write_text("\n".join(words))
        search = f"{{ {readable}; }} | xargs -d '\\n' grep -lFs -f /root/words || true"
        script = f"umask 077; cat > /root/words; {search}; rm /root/words"
        done = subprocess.run(
            [CHECKOUT / "lab" / "labctl", "exec", host, "--", "bash", "-c", script],
            env=life.site.lab.environment, stdin=patterns.open(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "", host
    kept = [path for path in life.site.lab.state.glob("*") if path.is_file()] + [
        path for path in life.site.lab.results.rglob("*") if path.is_file()
    ]
    open_files = [path for path in kept if path.stat().st_mode & 0o077]
    assert [path for path in open_files if any(word in path.read_text(errors="replace") for word in words)] == []
    assert (life.site.lab.state / "kubeconfig").stat().st_mode & 0o777 == 0o600


def test_a_third_node_is_added_while_a_group_keeps_serving(life: Life) -> None:
    before = life.site.incarnations()
    life.site.lab.up(nodes=NODES + 1, kubernetes=True)
    life.site.before[ADDED] = life.site.lab.fingerprint(ADDED)
    life.site.play("fabric", **release(EARLIER))
    life.site.play("kubernetes", "-e", f"@{life.site.lab.state}/secrets.json", **release(EARLIER))
    assert life.site.versions() == dict.fromkeys((*HOSTS, ADDED), EARLIER)
    offers = life.site.get("node", ADDED)["status"]["allocatable"]
    assert offers["nvidia.com/gpu"] == "1"
    assert life.site.incarnations() == before


def test_a_dry_run_prints_the_order_and_changes_nothing(life: Life) -> None:
    before = life.site.incarnations()
    output = " ".join(life.site.play("upgrade", k3s_upgrade_dry_run=True, **release(LATEST)).split())
    steps = [
        "stop the whole model group",
        "control: drain",
        "spark1: drain",
        f"{ADDED}: drain",
        "start the whole model",
    ]
    places = [output.index(step) for step in [*steps, "verify the transport"]]
    assert places == sorted(places)
    assert set(life.site.versions().values()) == {EARLIER}
    assert life.site.incarnations() == before


def test_an_upgrade_that_is_killed_three_times_completes_and_the_transport_is_gated(life: Life) -> None:
    before = life.site.incarnations()
    for point in POINTS:
        life.site.killed("upgrade", point, **release(LATEST))
    output = life.site.play("upgrade", **release(LATEST))
    assert "gb10.cluster.nccl_verify" in output
    assert life.site.versions() == dict.fromkeys((*HOSTS, ADDED), LATEST)
    nodes = life.site.get("nodes")["items"]
    assert not any(node["spec"].get("unschedulable") for node in nodes)
    marked = [*nodes, life.site.get("namespace", "gb10-serving")]
    assert not any("gb10.cluster/upgrade" in (o["metadata"].get("annotations") or {}) for o in marked)
    after = life.site.incarnations()
    assert len(after) == NODES
    assert before.isdisjoint(after)
    again = life.site.play("upgrade", **release(LATEST))
    assert "Nothing to upgrade." in again
    assert life.site.incarnations() == after


def test_a_minor_release_is_not_skipped(life: Life) -> None:
    wanted = {"k3s_version": "v1.38.0+k3s1", "k3s_airgap_dir": "", "k3s_binary_checksum": f"sha256:{'0' * 64}"}
    output = life.site.play("upgrade", check=False, **wanted)
    assert "1.37" in output
    assert set(life.site.versions().values()) == {LATEST}


def test_a_node_is_removed_and_the_group_keeps_serving(life: Life) -> None:
    before = life.site.incarnations()
    assert "k3s_reset_confirm=yes" in life.site.play("reset", "--limit", ADDED, check=False)
    assert ADDED in life.site.versions()
    life.site.play("reset", "--limit", ADDED, k3s_reset_confirm="yes")
    assert sorted(life.site.versions()) == sorted(HOSTS)
    assert life.site.left(ADDED, MAY_DIFFER) == []
    assert life.site.lab.shell(ADDED, "pgrep -fl 'container[d]|kubele[t]|k3[s]|multu[s]' || true") == ""
    assert life.site.incarnations() == before
