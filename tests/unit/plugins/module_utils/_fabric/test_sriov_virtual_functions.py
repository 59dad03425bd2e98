# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what is found, refused, written and restored at boot for virtual functions with stored texts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import virtual_functions as sriov
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.virtual_functions import (
    Pf,
    PfState,
    Step,
    Sysfs,
    Vf,
    VfState,
)
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system

MAC0, MAC1 = "02:95:2a:00:01:00", "02:95:2a:00:01:01"
PF, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
VFS = [Vf(PF, 0, "enp1s0f0v0", MAC0), Vf(PF, 1, "enp1s0f0v1", MAC1)]
OTHER = Vf(SECOND, 0, "enP2p1s0f0v0", "02:95:2a:00:02:00")
AWAY = VfState("", "", None, "pod gb10-serving/gemma-0 (network namespace cni-5f)")
LOST = VfState("", "", None)


def there(index: int, mac: str, admin: str | None = None) -> VfState:
    return VfState(f"enp1s0f0v{index}", mac, admin)


def state(numvfs: int = 0, *vfs: VfState, total: int | None = 8, present: bool = True) -> PfState:
    return PfState(PF, "0000:01:00.0", present, total, numvfs, dict(reversed([*enumerate(vfs)])))


BOTH = state(2, there(0, MAC0), there(1, MAC1))
# {case: planned count, observed state}
STATES: dict[str, tuple[int, PfState]] = {
    "unconfigured": (2, state()),
    "fewer": (1, BOTH),
    "more": (3, BOTH),
    "none": (0, BOTH),
    "none wanted and none there": (0, state(total=None)),
    "as planned": (2, state(2, there(0, MAC0, MAC0), there(1, MAC1))),
    "another MAC": (1, state(1, there(0, MAC1))),
    "a MAC that the port would not restore": (1, state(1, there(0, MAC0, "00:00:00:00:00:00"))),
    "a driver that is not bound": (1, state(1, LOST)),
    "not observed": (1, state(1)),
    "one in a pod": (2, state(2, AWAY, there(1, MAC1))),
    "one in a pod and another MAC": (2, state(2, AWAY, there(1, MAC0))),
    "fewer, some in use": (1, state(3, LOST, there(1, MAC1), AWAY)),
    "all that there may be": (8, state()),
    "no port": (1, state(present=False)),
    "no SR-IOV in the firmware": (4, state(total=0)),
    "a port without SR-IOV": (4, state(total=None)),
    "more than the firmware has": (9, state()),
}


def written(steps: list[Step]) -> list[str]:
    return [f"{one.pf} {one.action} = {one.value} {one.netdev} {one.vf_index}" for one in steps]


def test_the_findings_and_writes_are_as_stored() -> None:
    found = {}
    for name, (count, before) in STATES.items():
        pfs, states = [Pf(PF, count)], {PF: before}
        findings = sriov.check(pfs, states, force=False)
        forced = [] if sriov.check(pfs, states, force=True) == findings else ["not with force"]
        found[name] = [*map(str, findings), *forced, *written(sriov.steps(pfs, VFS, states))]
    two = {name: PfState(name, "", True, 8, 0, {}) for name in (PF, SECOND)}
    planned = [Vf(PF, 0, "enp1s0f0v0", ""), VFS[1], OTHER]
    found["two ports, one VF without a MAC"] = written(sriov.steps([Pf(PF, 2), Pf(SECOND, 1)], planned, two))
    found["two ports with too many"] = list(map(str, sriov.check([Pf(PF, 9), Pf(SECOND, 9)], two, force=False)))
    stored.compare("sriov_planned", found)


class Host:
    """A PF with its VFs, as the kernel shows them, its interfaces, and the commands that are run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, case: Mapping[str, Any]) -> None:
        """Make the functions whose interfaces ``case`` names: None is one without a driver here."""
        self.sysfs, self.pci = Sysfs(root), root / "devices/0000:01:00.0"
        self.ran: list[str] = []
        self.pci.mkdir(parents=True)
        names = case.get("functions", ["enp1s0f0v0"])
        for number, name in enumerate(names):
            function = root / f"devices/0000:01:00.{number + 2}"
            (function / f"net/{name}" if name else function).mkdir(parents=True)
            (self.pci / f"virtfn{number}").symlink_to(function)
        (self.pci / "sriov_totalvfs").write_text("8\n")
        self.numvfs.write_text(f"{case.get('numvfs', len(names))}\n")
        (root / f"class/net/{PF}").mkdir(parents=True)
        (root / f"class/net/{PF}/device").symlink_to(self.pci)
        admin = [{"vf": number, "address": mac} for number, mac in case.get("admin", {}).items()]
        links = {PF: {"vfinfo_list": admin}} | {name: {"address": mac} for name, mac in case.get("links", {}).items()}
        spaces = [netns.Holder(Path("/run/netns/cni-1"), "cni-1", (), "ns/pod", case["held"])] if "held" in case else []

        def holders() -> list[netns.Holder]:
            self.ran.append("look for holders")
            return spaces

        def run(argv: list[str]) -> None:
            self.ran.append(" ".join(argv))
            if case.get("refuses"):
                raise system.HostError(f"{argv[0]}: refused")

        monkeypatch.setattr(netns, "holders", holders)
        monkeypatch.setattr(system, "links", lambda: links)
        monkeypatch.setattr(system, "run", run)

    @property
    def numvfs(self) -> Path:
        return self.pci / "sriov_numvfs"

    def do(self, *steps: Step) -> list[str]:
        """Return the commands that the steps ran, or why one failed."""
        self.ran.clear()
        try:
            sriov.apply(self.sysfs, steps, 0)
        except system.HostError as error:
            return [*self.ran, f"= {error}"]
        return list(self.ran)


TWO = {"functions": ["enp1s0f0v0", "enp1s0f0v1"]}
LIVE: dict[str, dict[str, Any]] = {
    # The interface that the kernel names is there, so the planned name belongs to another one.
    "names of the kernel": {"links": {"enp1s0f0v0": MAC0, "planned0": MAC1}, "admin": {0: MAC1}, "planned": "planned0"},
    # The kernel's directory has the names of before udev renamed them.
    "names of before udev": {
        "functions": ["eth0", "eth1"],
        "links": {"enp1s0f0v0": MAC1, "enp1s0f0v1": MAC0},
        "admin": {1: MAC1, 0: MAC0},
    },
    "held by its PCI address": {"functions": [None], "held": {"net1": {"parentdev": "0000:01:00.2"}}},
    "in a pod, and without a driver": {
        "functions": ["eth7", None, None],
        "links": {"enp1s0f0v0": MAC0},
        "admin": {1: MAC1},
        "held": {"net1": {"address": MAC1, "parentdev": "0000:01:00.3"}},
        "count": 3,
    },
    "all restored": {**TWO, "links": {"enp1s0f0v0": MAC0, "enp1s0f0v1": MAC0}, "count": 2},
    "through the port": {"links": {"enp1s0f0v0": MAC0}, "admin": {0: MAC1}},
    "in use": {**TWO, "count": 1},
    "too many": {"links": {"enp1s0f0v0": MAC0}, "count": 9},
    "refused": {"links": {"enp1s0f0v0": MAC1}, "refuses": True},
}


def test_what_is_observed_and_restored_at_boot_is_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for number, (name, case) in enumerate(LIVE.items()):
        root = tmp_path / str(number)
        host = Host(root, monkeypatch, case)
        vfs = [Vf(PF, 0, case["planned"], MAC1)] if "planned" in case else VFS
        pfs = [Pf(PF, case.get("count", len(case.get("functions", [1])))), Pf("gone0", 1)]
        states = sriov.observe(host.sysfs, pfs, vfs)
        said = [f"{PF} {index}: {vf}" for index, vf in states[PF].vfs.items()]
        said += [str(states["gone0"]), *host.ran]
        assert (states[PF].pci, states[PF].totalvfs, states[PF].present) == ("0000:01:00.0", 8, True)
        config, host.ran = root / "sriov.json", []
        config.write_text(sriov.configuration(str(root), pfs, vfs, {PF: 4}, 0))
        told = [f"= {line}" for line in sriov.boot(config)]
        found[name] = [*said, "boot", *host.ran, *told, f"sriov_numvfs: {host.numvfs.read_text().strip()}"]
    text = sriov.configuration("/sys", [Pf(PF, 1)], VFS[:1], {PF: 4}, 7)
    found["configuration"] = stored.flat(json.loads(text))
    assert text.endswith("}\n")
    mac = Step("mac", PF, MAC0, 0, "enp1s0f0v0")
    for case in ({"admin": {0: ""}}, {"admin": {1: ""}}, {"admin": {1: "", 0: ""}}, {}):
        host = Host(tmp_path / f"mac {case}", monkeypatch, {**case, "links": {"enp1s0f0v0": "", "enp1s0f0v1": ""}})
        found[f"set a MAC {case}"] = host.do(mac, Step("mac", PF, MAC1, 1, "enp1s0f0v1"))
    for functions in (["enp1s0f0v0"], [None]):
        host = Host(tmp_path / f"no {functions}", monkeypatch, {"functions": functions})
        found[f"no interface comes, {functions}"] = host.do(mac)
    found["a count holds only with as many functions"] = [*host.do(Step("numvfs", PF, "1")), "written: 1"]
    found["a count holds only with as many functions"] += [*host.do(Step("numvfs", PF, "2")), host.numvfs.read_text()]
    for text in ("", "unknown\n", "-1\n"):
        (host.pci / "sriov_totalvfs").write_text(text)
        assert host.sysfs.number(PF, "sriov_totalvfs") is None
    stored.compare("sriov_live", found)
