# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
from pathlib import Path
from typing import Any

import pytest
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
VFS = [Vf("enp1s0f0np0", 0, "enp1s0f0v0", MAC0), Vf("enp1s0f0np0", 1, "enp1s0f0v1", MAC1)]


def state(numvfs: int = 0, total: int | None = 8, present: bool = True, **vfs: VfState) -> dict[str, PfState]:
    found = {int(name.removeprefix("vf")): vf for name, vf in vfs.items()}
    return {"enp1s0f0np0": PfState("enp1s0f0np0", "0000:01:00.0", present, total, numvfs, found)}


def there(index: int, mac: str, admin: str | None = None) -> VfState:
    return VfState(f"enp1s0f0v{index}", mac, admin)


AWAY = VfState("", "", None, "pod gb10-serving/gemma-0 (network namespace cni-5f)")


def test_an_unconfigured_port_gets_its_vfs_and_their_macs() -> None:
    assert sriov.steps([Pf("enp1s0f0np0", 2)], VFS, state()) == [
        Step("numvfs", "enp1s0f0np0", "2"),
        Step("mac", "enp1s0f0np0", MAC0, 0, "enp1s0f0v0"),
        Step("mac", "enp1s0f0np0", MAC1, 1, "enp1s0f0v1"),
    ]


def test_another_count_goes_through_zero() -> None:
    found = sriov.steps([Pf("enp1s0f0np0", 1)], VFS, state(2, vf0=there(0, MAC0), vf1=there(1, MAC1)))
    assert [step.value for step in found] == ["0", "1", MAC0]


def test_the_planned_state_needs_no_step() -> None:
    assert sriov.steps([Pf("enp1s0f0np0", 2)], VFS, state(2, vf0=there(0, MAC0, MAC0), vf1=there(1, MAC1))) == []


def test_a_vf_in_a_pod_is_left_alone() -> None:
    assert sriov.steps([Pf("enp1s0f0np0", 2)], VFS, state(2, vf0=AWAY, vf1=there(1, MAC1))) == []


def test_a_mac_that_the_port_would_not_restore_is_set_again() -> None:
    found = sriov.steps([Pf("enp1s0f0np0", 1)], VFS, state(1, vf0=there(0, MAC0, "00:00:00:00:00:00")))
    assert found == [Step("mac", "enp1s0f0np0", MAC0, 0, "enp1s0f0v0")]


@pytest.mark.parametrize(
    ("count", "before", "rule", "words"),
    [
        (1, state(present=False), "sriov.pf.missing", "gb10_fabric_pfs"),
        (4, state(total=0), "sriov.firmware.disabled", "sudo mstconfig -d 0000:01:00.0 set SRIOV_EN=1 NUM_OF_VFS=4"),
        (4, state(total=None), "sriov.firmware.disabled", "power-cycle"),
        (9, state(total=8), "sriov.count.above_hardware", "NUM_OF_VFS=9"),
        (1, state(2, vf0=AWAY, vf1=there(1, MAC1)), "sriov.vf.in_use", "sriov_force"),
        (1, state(2, vf0=there(0, MAC0), vf1=VfState("", "", None)), "sriov.vf.in_use", "sriov_force"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(
    count: int, before: dict[str, PfState], rule: str, words: str
) -> None:
    findings = sriov.check([Pf("enp1s0f0np0", count)], before, force=False)
    assert [finding.rule for finding in findings] == [rule]
    assert words in findings[0].remedy


def test_the_pod_that_holds_the_vf_is_named() -> None:
    found = sriov.check([Pf("enp1s0f0np0", 1)], state(2, vf0=AWAY, vf1=there(1, MAC1)), force=False)
    assert found[0].value == AWAY.holder


def test_force_allows_to_destroy_a_vf_in_use() -> None:
    assert sriov.check([Pf("enp1s0f0np0", 1)], state(2, vf0=AWAY, vf1=there(1, MAC1)), force=True) == []


def test_no_vfs_are_fine_where_the_firmware_has_none() -> None:
    assert sriov.check([Pf("enp1s0f0np0", 0)], state(total=None), force=False) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A PF with one VF, as the kernel shows them."""
    pci, vf = tmp_path / "devices/0000:01:00.0", tmp_path / "devices/0000:01:00.2"
    (vf / "net/enp1s0f0v0").mkdir(parents=True)
    pci.mkdir()
    (pci / "sriov_totalvfs").write_text("8\n")
    (pci / "sriov_numvfs").write_text("1\n")
    (pci / "virtfn0").symlink_to(vf)
    (tmp_path / "class/net/enp1s0f0np0").mkdir(parents=True)
    (tmp_path / "class/net/enp1s0f0np0/device").symlink_to(pci)
    return tmp_path


def test_observe_reads_counts_names_and_macs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links: dict[str, Any] = {
        "enp1s0f0np0": {"vfinfo_list": [{"vf": 0, "address": MAC1}]},
        "enp1s0f0v0": {"address": MAC0},
        "planned0": {"address": MAC1},
    }
    monkeypatch.setattr(system, "links", lambda: links)
    # The interface that the kernel names is there, so the planned name belongs to another one.
    vfs = [Vf("enp1s0f0np0", 0, "planned0", MAC1)]
    found = sriov.observe(Sysfs(tree), [Pf("enp1s0f0np0", 1)], vfs)["enp1s0f0np0"]
    assert (found.pci, found.totalvfs, found.numvfs) == ("0000:01:00.0", 8, 1)
    assert found.vfs == {0: VfState("enp1s0f0v0", MAC0, MAC1)}


def test_observe_finds_who_holds_a_vf_by_its_pci_address(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "devices/0000:01:00.2/net/enp1s0f0v0").rmdir()
    inside = {"net1": {"address": "02:ff:ff:ff:ff:ff", "parentdev": "0000:01:00.2"}}
    monkeypatch.setattr(system, "links", lambda: {"enp1s0f0np0": {}})
    holder = netns.Holder(Path("/run/netns/cni-1"), "cni-1", (), "gb10-serving/gemma-0", inside)
    monkeypatch.setattr(netns, "holders", lambda: [holder])
    found = sriov.observe(Sysfs(tree), [Pf("enp1s0f0np0", 1)], [])["enp1s0f0np0"]
    assert found.vfs[0].holder == "pod gb10-serving/gemma-0 (network namespace cni-1)"


def test_the_boot_unit_reports_the_failure_of_each_port(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "links", lambda: {"enp1s0f0np0": {}, "enp1s0f0v0": {"address": MAC0}})
    config = tree / "sriov.json"
    pfs = [Pf("enp1s0f0np0", 1), Pf("enP2p1s0f0np0", 1)]
    config.write_text(sriov.configuration(str(tree), pfs, VFS[:1], {}, 0))
    assert sriov.boot(config) == ["enP2p1s0f0np0: no SR-IOV device within 0 s"]


def test_two_ports_are_checked_and_planned() -> None:
    pfs = [Pf("enp1s0f0np0", 9), Pf("enP2p1s0f0np0", 9)]
    both = {pf.name: PfState(pf.name, "", True, 8, 0, {}) for pf in pfs}
    assert [one.key for one in sriov.check(pfs, both, force=False)] == [f"{pf.name} vf_count" for pf in pfs]
    wanted = [Pf("enp1s0f0np0", 1), Pf("enP2p1s0f0np0", 1)]
    assert [step.pf for step in sriov.steps(wanted, [*VFS, OTHER], both)] == [
        pf.name for pf in wanted for _step in "nm"
    ]


def test_a_function_whose_interface_has_its_planned_name_is_known_by_it(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's directory has the names of before udev renamed them."""
    (tree / "devices/0000:01:00.0/sriov_numvfs").write_text("2\n")
    (tree / "devices/0000:01:00.3/net/eth1").mkdir(parents=True)
    (tree / "devices/0000:01:00.0/virtfn1").symlink_to(tree / "devices/0000:01:00.3")
    (tree / "devices/0000:01:00.2/net/enp1s0f0v0").rename(tree / "devices/0000:01:00.2/net/eth0")
    entries = [{"vf": 0, "address": MAC0}, {"vf": 1, "address": MAC1}]
    links = {"enp1s0f0np0": {"vfinfo_list": entries}, "enp1s0f0v0": {"address": MAC1}, "enp1s0f0v1": {"address": MAC0}}
    monkeypatch.setattr(system, "links", lambda: links)
    found = sriov.observe(Sysfs(tree), [Pf("enp1s0f0np0", 2)], VFS)["enp1s0f0np0"]
    assert found.vfs == {0: VfState("enp1s0f0v0", MAC1, MAC0), 1: VfState("enp1s0f0v1", MAC0, MAC1)}


def test_all_steps_are_done(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, enp1s0f0np0={}, enp1s0f0v0={}, enp1s0f0v1={})
    sriov.apply(Sysfs(tree), [MAC_STEP, Step("mac", "enp1s0f0np0", MAC1, 1, "enp1s0f0v1")], 0)
    assert driver.ran == [ON_VF, f"ip link set dev enp1s0f0v1 address {MAC1}"]


def test_a_boot_destroys_no_functions_that_are_in_use(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "devices/0000:01:00.0/sriov_numvfs").write_text("2\n")
    Driver(monkeypatch, enp1s0f0np0={})
    monkeypatch.setattr(netns, "holders", list)
    config = tree / "sriov.json"
    config.write_text(sriov.configuration(str(tree), [Pf("enp1s0f0np0", 1)], VFS, {}, 0))
    assert config.read_text().endswith("}\n")
    assert [vf["vf_index"] for vf in json.loads(config.read_text())["vfs"]] == [0, 1]
    assert ["sriov.vf.in_use" in problem for problem in sriov.boot(config)] == [True, True]
    assert (tree / "devices/0000:01:00.0/sriov_numvfs").read_text() == "2\n"


def test_a_boot_restores_every_planned_function(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "devices/0000:01:00.0/sriov_numvfs").write_text("2\n")
    driver = Driver(monkeypatch, enp1s0f0np0={}, enp1s0f0v0={"address": MAC0}, enp1s0f0v1={"address": MAC0})
    config = tree / "sriov.json"
    config.write_text(sriov.configuration(str(tree), [Pf("enp1s0f0np0", 2)], VFS, {}, 0))
    assert sriov.boot(config) == []
    assert driver.ran == [f"ip link set dev enp1s0f0v1 address {MAC1}"]


OTHER = Vf("enP2p1s0f0np0", 0, "enP2p1s0f0v0", "02:95:2a:00:02:00")
BOTH = state(2, vf0=there(0, MAC0), vf1=there(1, MAC1))


@pytest.mark.parametrize(
    ("count", "vfs", "before", "values"),
    [
        (0, VFS, BOTH, ["0"]),
        (0, VFS, state(), []),
        (3, VFS, BOTH, ["0", "3", MAC0, MAC1]),
        (1, VFS, state(1, vf0=there(0, MAC0)), []),
        (1, VFS, state(1, vf0=there(0, MAC1)), [MAC0]),
        (1, VFS, state(1, vf0=VfState("", "", None)), [MAC0]),
        (1, VFS, state(1), [MAC0]),
        (1, [OTHER, Vf("enp1s0f0np0", 0, "enp1s0f0v0", "")], state(), ["1"]),
        (2, VFS, state(2, vf0=AWAY, vf1=there(1, MAC0)), [MAC1]),
        (1, VFS, state(2, vf0=AWAY, vf1=AWAY), ["0", "1", MAC0]),
    ],
    ids=[
        "remove",
        "none wanted and none there",
        "more",
        "as planned",
        "another mac",
        "driver not bound",
        "not observed",
        "of another port, or without a mac",
        "one in a pod",
        "forced",
    ],
)
def test_the_writes_from_a_state_to_the_plan(
    count: int, vfs: list[Vf], before: dict[str, PfState], values: list[str]
) -> None:
    assert [step.value for step in sriov.steps([Pf("enp1s0f0np0", count)], vfs, before)] == values


def test_every_vf_in_use_is_a_finding_and_an_unchanged_count_is_none() -> None:
    before = state(3, vf2=AWAY, vf1=there(1, MAC1), vf0=VfState("", "", None))
    found = sriov.check([Pf("enp1s0f0np0", 1)], before, force=False)
    assert [(one.severity, one.key, one.value) for one in found] == [
        ("error", "enp1s0f0np0 VF 0", sriov.UNKNOWN_HOLDER),
        ("error", "enp1s0f0np0 VF 2", AWAY.holder),
    ]
    assert sriov.check([Pf("enp1s0f0np0", 3)], before, force=False) == []
    assert sriov.check([Pf("enp1s0f0np0", 8)], state(), force=False) == []


class Driver:
    """The commands of a host, and its interfaces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **links: dict[str, Any]) -> None:
        self.ran: list[str] = []
        monkeypatch.setattr(system, "links", lambda: links)
        monkeypatch.setattr(system, "run", lambda argv: self.ran.append(" ".join(argv)))


MAC_STEP = Step("mac", "enp1s0f0np0", MAC0, 0, "enp1s0f0v0")
ON_VF = f"ip link set dev enp1s0f0v0 address {MAC0}"


@pytest.mark.parametrize(
    ("entries", "commands"),
    [
        ([{"vf": 0}], [ON_VF, f"ip link set dev enp1s0f0np0 vf 0 mac {MAC0}"]),
        ([{"vf": 1}], [ON_VF]),
        ([{"vf": 1}, {"vf": 0}], [ON_VF, f"ip link set dev enp1s0f0np0 vf 0 mac {MAC0}"]),
        ([], [ON_VF]),
    ],
)
def test_a_mac_is_set_on_the_interface_and_then_through_a_port_that_can(
    tree: Path, monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, int]], commands: list[str]
) -> None:
    driver = Driver(monkeypatch, enp1s0f0np0={"vfinfo_list": entries}, enp1s0f0v0={})
    sriov.apply(Sysfs(tree), [MAC_STEP], 0)
    assert driver.ran == commands


def test_an_interface_that_does_not_come_says_why(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch)
    with pytest.raises(
        system.HostError, match="VF 0: no interface enp1s0f0v0 within 0 s; the kernel calls it enp1s0f0v0"
    ):
        sriov.apply(Sysfs(tree), [MAC_STEP], 0)
    (tree / "devices/0000:01:00.2/net/enp1s0f0v0").rmdir()
    with pytest.raises(system.HostError, match="its driver did not bind"):
        sriov.apply(Sysfs(tree), [MAC_STEP], 0)


def test_a_count_holds_only_with_as_many_functions(tree: Path) -> None:
    sriov.apply(Sysfs(tree), [Step("numvfs", "enp1s0f0np0", "1")], 0)
    with pytest.raises(system.HostError, match="sriov_numvfs did not become 2 within 0 s"):
        sriov.apply(Sysfs(tree), [Step("numvfs", "enp1s0f0np0", "2")], 0)
    assert (tree / "devices/0000:01:00.0/sriov_numvfs").read_text() == "2"


def test_a_port_is_observed_with_each_of_its_functions(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is under its planned name, the second in a pod, the third without a driver."""
    (tree / "devices/0000:01:00.0/sriov_numvfs").write_text("3\n")
    (tree / "devices/0000:01:00.2/net/enp1s0f0v0").rename(tree / "devices/0000:01:00.2/net/eth7")
    for number in (1, 2):
        (tree / f"devices/0000:01:00.{number + 2}").mkdir()
        (tree / f"devices/0000:01:00.0/virtfn{number}").symlink_to(tree / f"devices/0000:01:00.{number + 2}")
    links = {"enp1s0f0np0": {"vfinfo_list": [{"vf": 1, "address": MAC1}]}, "enp1s0f0v0": {"address": MAC0}}
    monkeypatch.setattr(system, "links", lambda: links)
    asked: list[int] = []

    def holders() -> list[netns.Holder]:
        asked.append(1)
        inside = {"net1": {"address": MAC1, "parentdev": "0000:01:00.3"}}
        return [netns.Holder(Path("/run/netns/cni-1"), "cni-1", (), "ns/pod", inside)]

    monkeypatch.setattr(netns, "holders", holders)
    found = sriov.observe(Sysfs(tree), [Pf("enp1s0f0np0", 3), Pf("absent0", 1)], VFS)
    assert found["enp1s0f0np0"].vfs == {
        0: VfState("enp1s0f0v0", MAC0, None),
        1: VfState("", "", MAC1, "pod ns/pod (network namespace cni-1)"),
        2: VfState("", "", None),
    }
    assert found["enp1s0f0np0"].present
    assert found["absent0"] == PfState("absent0", "", False, None, 0, {})
    assert len(asked) == 1


def test_the_boot_unit_restores_what_was_lost_and_leaves_a_change_alone_that_harms(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(
        monkeypatch, enp1s0f0np0={"vfinfo_list": [{"vf": 0, "address": MAC1}]}, enp1s0f0v0={"address": MAC0}
    )
    config = tree / "sriov.json"
    config.write_text(sriov.configuration(str(tree), [Pf("enp1s0f0np0", 1)], VFS, {"enp1s0f0np0": 4}, 7))
    assert json.loads(config.read_text())["origin"] == {"enp1s0f0np0": 4}
    assert json.loads(config.read_text())["timeout"] == 7
    assert sriov.boot(config) == []
    assert driver.ran == [ON_VF, f"ip link set dev enp1s0f0np0 vf 0 mac {MAC0}"]
    config.write_text(sriov.configuration(str(tree), [Pf("enp1s0f0np0", 9)], VFS, {}, 0))
    (problem,) = sriov.boot(config)
    assert "sriov.count.above_hardware" in problem
    assert (tree / "devices/0000:01:00.0/sriov_numvfs").read_text() == "1\n"


def test_the_boot_unit_goes_on_with_the_next_port(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, enp1s0f0np0={}, enp1s0f0v0={"address": MAC1})
    monkeypatch.setattr(system, "run", refuse)
    config = tree / "sriov.json"
    config.write_text(sriov.configuration(str(tree), [Pf("enp1s0f0np0", 1), Pf("gone0", 1)], VFS, {}, 0))
    assert sriov.boot(config) == ["ip: refused", "gone0: no SR-IOV device within 0 s"]


def refuse(argv: list[str]) -> None:
    raise system.HostError(f"{argv[0]}: refused")


@pytest.mark.parametrize("text", ["", "unknown\n", "-1\n"])
def test_a_number_that_the_driver_does_not_give_is_unknown(tree: Path, text: str) -> None:
    (tree / "devices/0000:01:00.0/sriov_totalvfs").write_text(text)
    assert Sysfs(tree).number("enp1s0f0np0", "sriov_totalvfs") is None
