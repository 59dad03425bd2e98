# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play docs/daily.md on two and three Sparks: every block in the page's order, with the actions at the rack between."""

import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from cables import plug
from documented import FENCE, ROOT, commands
from labcommand import LabCommand
from sitecommand import PATIENCE, Site
from test_discover import OVERLAY
from test_documented import of_this_lab, run
from test_prepare import RESTART, boot_id, on_host, wait_for_reboot

COVERS = (
    "docs/daily.md",
    "playbooks/shutdown.yml",
    "playbooks/logs.yml",
    "playbooks/chat.yml",
    "playbooks/serve_status.yml",
    "playbooks/serve_stop.yml",
    "playbooks/reset.yml",
)

EXAMPLE = ROOT / "inventory" / "4x-gb10-switch"
HOSTS, ADDED = ("spark1", "spark2"), "spark3"
# containerd creates /opt/containerd, labctl adds new hosts to /etc/hosts, forwarding stays on until the next boot, and
# models stay (docs/uninstall.md).
MAY_DIFFER = r"^/opt/containerd|^/etc/hosts |^setting .* forwarding|^/srv/models"


@dataclass
class Day:
    """The lab, the owner's inventory, and what the commands of a section printed."""

    site: Site
    mine: Path
    running: set[str] = field(default_factory=set)
    said: dict[str, str] = field(default_factory=dict)

    def edit(self, where: str, text: str) -> None:
        """Write a block of the page into the inventory: variables, or all hosts of gb10_nodes."""
        name, _comma, what = where.partition(", ")
        file = self.mine / name.removeprefix("inventory/mine/")
        document, written = (yaml.safe_load(each) for each in (file.read_text(encoding="utf-8"), text))
        if what == "the hosts of gb10_nodes":
            document["gb10_cluster"]["children"]["gb10_nodes"]["hosts"] = written
        else:
            document |= written
        file.write_text(yaml.safe_dump(document), encoding="utf-8")

    def type(self, where: str, text: str) -> None:
        """Run a block of the page on the machine that it names."""
        if where.startswith("On spark"):
            host = where.removeprefix("On ")
            before = boot_id(self.site.lab, host)
            assert text == RESTART
            on_host(self.site.lab, host, text)
            wait_for_reboot(self.site.lab, host, before, PATIENCE)
            return
        assert where == "On your machine"
        for command in text.splitlines():
            started = time.monotonic()
            typed = of_this_lab(self.site.lab, command, f"-i {self.mine} -i {OVERLAY}")
            typed = typed.replace("results/", f"{self.site.lab.results}/")
            # The owner ends it with Ctrl-C.
            typed = f"timeout 5 {typed} || [ $? = 124 ]" if " logs -f " in typed else typed
            self.said[command] = run(self.site.lab, typed)
            print(f"{time.monotonic() - started:.0f} s: {command}")

    def output(self, word: str) -> str:
        """Return what the last command with this word printed, as one line."""
        return " ".join([said for command, said in self.said.items() if word in command][-1].split())

    def back(self, ranks: int) -> None:
        """Wait until the API answers and every rank has started again."""
        started = time.monotonic()
        while self.site.ask("get", "nodes").returncode:
            assert time.monotonic() - started < PATIENCE
            time.sleep(1)
        self.site.wait_ready(self.running, ranks)
        print(f"{time.monotonic() - started:.0f} s until {ranks} ranks were back")


@pytest.fixture(scope="module")
def day(make_lab: Callable[..., LabCommand], tmp_path_factory: pytest.TempPathFactory) -> Day:
    """Deploy what the page starts with: the two first Sparks of the example, and a model on both."""
    mine = tmp_path_factory.mktemp("inventory") / "mine"
    shutil.copytree(EXAMPLE, mine)
    lab = LabCommand(make_lab().state, (mine, OVERLAY))
    lab.up(nodes=len(HOSTS), kubernetes=True)
    made = Day(Site(lab, group="qwen3-235b", before={host: lab.fingerprint(host) for host in HOSTS}), mine)
    known = yaml.safe_load((mine / "hosts.yml").read_text(encoding="utf-8"))
    nodes = known["gb10_cluster"]["children"]["gb10_nodes"]["hosts"]
    made.edit(
        "inventory/mine/hosts.yml, the hosts of gb10_nodes", yaml.safe_dump({host: nodes[host] for host in HOSTS})
    )
    made.edit("inventory/mine/group_vars/gb10_cluster.yml", "serving_plan_preset: two-nodes")
    made.site.play("site")
    return made


def unpack_a_spark(day: Day) -> None:
    day.site.lab.up(nodes=len(HOSTS) + 1, kubernetes=True)
    day.site.before[ADDED] = day.site.lab.fingerprint(ADDED)


def cut_the_power(day: Day) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: day.site.lab("reboot", host), HOSTS))
    day.back(2)


def move_the_cables(day: Day) -> None:
    rails = {f"{host}-r{rail}": f"rail{rail}" for host in HOSTS for rail in (0, 1)}
    plug(day.site.lab, dict.fromkeys(rails, ""))
    plug(day.site.lab, rails)


# What somebody does at the rack before a block of a section, counted from 0.
AT_THE_RACK: dict[tuple[str, int], Callable[[Day], None]] = {
    ("Add a node", 0): unpack_a_spark,
    ("After a power cut", 0): cut_the_power,
    ("Move to another switch", 1): move_the_cables,
}


def switched(day: Day) -> None:
    assert day.site.pods("gemma-4-31b-it") == []
    assert len(day.site.incarnations()) == 2
    assert "tokens, the first after" in day.output("chat")


def watched(day: Day) -> None:
    assert "qwen3-235b.gb10-serving:30000" in day.output("serve_status")
    (follow,) = (command for command in day.said if command.startswith("kubectl"))
    # before it stands --kubeconfig, because the lab's is not in the default place
    assert follow.removeprefix("kubectl ") in day.output("logs.yml")
    assert day.said[follow]


def updated(day: Day) -> None:
    # the simulated image of each release has this variable
    asked = "import os; print(os.environ['SGLANG_STANDIN_VERSION'])"
    assert day.site.in_head("python3", "-c", asked).strip() == "0.5.23"
    assert len(day.site.incarnations()) == 2


def added(day: Day) -> None:
    assert len(day.site.incarnations()) == 3
    assert sorted(day.site.versions()) == [*HOSTS, ADDED]


def removed(day: Day) -> None:
    told = day.output("reset.yml")
    assert "stops now: qwen3-235b" in told
    assert "spark3 is not in the cluster any more" in told
    assert sorted(day.site.versions()) == [*HOSTS]
    assert len(day.site.incarnations()) == 2
    assert day.site.left(ADDED, MAY_DIFFER) == []


def restarted(day: Day) -> None:
    day.back(2)


def looked_after(day: Day) -> None:
    assert "is ready" in day.output("serve_status")
    assert "0 errors" in day.output("preflight")


def switched_off(day: Day) -> None:
    started = time.monotonic()
    # The hosts go off some seconds after the playbook's end.
    while not day.site.ask("get", "nodes").returncode:
        assert time.monotonic() - started < PATIENCE
        time.sleep(1)
    # podman starts a host again that was switched off, as somebody who presses its power button
    day.back(2)


def restored(day: Day) -> None:
    nodes = [f"node/{host}" for host in HOSTS]
    day.site.kubectl("wait", "--for=condition=Ready", *nodes, f"--timeout={PATIENCE}s")
    day.site.wait_ready((), 2)


def moved(day: Day) -> None:
    assert "(rdma), by channels evidence, as expected" in day.output("site")
    assert len(day.site.incarnations()) == 2


def gone(day: Day) -> None:
    assert [day.site.left(host, MAY_DIFFER) for host in HOSTS] == [[] for _host in HOSTS]


# The sections of the page in their order, each with what must be true after it.
AFTER: dict[str, Callable[[Day], None]] = {
    "Switch the model": switched,
    "State and log": watched,
    "Update the image": updated,
    "Add a node": added,
    "Remove a node": removed,
    "Reboot a node": restarted,
    "After a power cut": looked_after,
    "Shut down": switched_off,
    "Back up": restored,
    "Move to another switch": moved,
    "Remove everything": gone,
}


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Return the language, first line and other lines of every block, by the heading above it."""
    _before, *parts = re.split(r"^## ", (ROOT / "docs" / "daily.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        part.partition("\n")[0]: [
            (language, text.partition("\n")[0].removeprefix("# "), text.partition("\n")[2])
            for _indent, language, text in FENCE.findall(part)
        ]
        for part in parts
    }


SECTIONS = sections()


def test_the_page_has_the_expected_sections_and_every_command_in_a_block_of_one() -> None:
    assert list(SECTIONS) == list(AFTER)
    blocks = [text for section in SECTIONS.values() for language, _where, text in section if language == "shell"]
    assert "".join(blocks).splitlines() == [command for _page, command in commands("daily")]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_the_page_does_what_it_says(day: Day, section: str) -> None:
    day.said, day.running = {}, set()
    if section in ("Reboot a node", "After a power cut", "Shut down"):
        day.running = day.site.incarnations()
    for number, (language, where, text) in enumerate(SECTIONS[section]):
        if hand := AT_THE_RACK.get((section, number)):
            hand(day)
        (day.edit if language == "yaml" else day.type)(where, text)
    AFTER[section](day)
