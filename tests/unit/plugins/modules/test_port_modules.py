# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test VFs, classes, GIDs and the health of ports: each is set once, changed and restored, or told."""

import errno
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import qos
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import virtual_functions as sriov
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.modules import fabric_health, nic_qos, pf_info, roce_gid_info, sriov_vf
from module_runs import Step, lose_rights, refuse_writes, steps_of
from sysfs_samples import mlx5_vf, pci_function

ABSENT = {"state": "absent"}


class Machine:
    """A host with a record of its first state, and with a unit that runs at boot."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, module: Any, code: str) -> None:
        self.root, self.patch, self.record, self.code = root, patch, root / "first.json", code
        self.ran: list[str] = []
        patch.setattr(module, "CONFIG", self.record)
        patch.setattr(module, "boot_unit", self.unit)
        patch.setattr(system, "run", self.run)

    def unit(self, timeout: int, _count: int = 0, *_: object) -> host_unit.HostUnit:
        units, library = self.root / "units", self.root / "library"
        return host_unit.HostUnit("gb10-unit", "", self.code, self.record, "", timeout, units=units, library=library)

    def run(self, argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        self.ran.append(" ".join(argv))
        if argv[:2] == ["systemctl", "enable"]:
            wanted = self.root / "units/multi-user.target.wants" / argv[-1]
            wanted.parent.mkdir(parents=True, exist_ok=True)
            wanted.unlink(missing_ok=True)
            wanted.symlink_to(f"../{argv[-1]}")
        return subprocess.CompletedProcess(list(argv), 0, self.answer(argv), "")

    def answer(self, argv: Sequence[str]) -> str:
        raise NotImplementedError

    def shows(self) -> dict[str, Any]:
        own = [path.name for path in (self.record, *sorted(self.root.glob("units/*"))) if path.exists()]
        code = [path.name for path in self.root.glob("library") if any(path.rglob("*.py"))]
        text = self.record.read_text() if self.record.exists() else "none"
        first = json.dumps(json.loads(text)["origin"]) if "origin" in text else text
        shown, self.ran = {"ran": self.ran, "files": [*own, *code], "first": first}, []
        return shown


def has(text: str) -> Step:
    return lambda machine: machine.record.write_text(text)


PF, MACS = "enp1s0f0np0", ("02:95:2a:00:01:00", "02:95:2a:00:01:01")
WANTED: dict[str, Any] = {
    "pfs": [{"name": PF, "vf_count": 2, "rail": "rail0"}],
    "vfs": [{"pf": PF, "vf_index": i, "netdev": f"enp1s0f0v{i}", "mac": mac} for i, mac in enumerate(MACS)],
}


class Functions(Machine):
    """A PF whose driver makes VFs as soon as sriov_numvfs is written."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch, sriov_vf, "_fabric.virtual_functions")
        self.options = {"sysfs_root": str(root), "timeout": 1}
        self.device = pci_function(root, PF, "0000:01:00.0", total_vfs=4)
        self.links: dict[str, dict[str, Any]] = {PF: {}}
        patch.setattr(sriov.Sysfs, "write_numvfs", self.write_numvfs)
        patch.setattr(system, "links", lambda: self.links)
        patch.setattr(netns, "holders", list)

    def write_numvfs(self, _pf: str, count: int) -> None:
        (self.device / "sriov_numvfs").write_text(str(count))
        for link in self.device.glob("virtfn*"):
            link.unlink()
        self.links = {PF: {}}
        for index in range(count):
            function = self.root / f"devices/0000:01:00.{index + 2}"
            (function / "net" / f"enp1s0f0v{index}").mkdir(parents=True, exist_ok=True)
            (self.device / f"virtfn{index}").symlink_to(function)
            self.links[f"enp1s0f0v{index}"] = {"address": "ee:00:00:00:00:00"}

    def answer(self, argv: Sequence[str]) -> str:
        if argv[:3] == ["ip", "link", "set"]:
            self.links[argv[4]]["address"] = argv[6]
        return ""

    def shows(self) -> dict[str, Any]:
        return super().shows() | {"links": self.links}


VFS: dict[str, list[Step]] = {
    "created, and removed": [{**WANTED, "check": True}, WANTED, WANTED, {**ABSENT, "check": True}, ABSENT, ABSENT],
    "more than the firmware offers": [{"pfs": [{"name": PF, "vf_count": 9}]}],
    "a VF without its keys": [{"pfs": WANTED["pfs"], "vfs": [{"pf": PF}]}],
    "no rights": [lose_rights, WANTED],
    "a read-only file system": [lambda machine: refuse_writes(machine.patch, errno.EROFS), WANTED],
    **{f"a damaged record {text}": [has(text), WANTED] for text in ("{", "[]")},
}


BEFORE = {"lo": (frozenset({5}), {26: 2}), "gone0": (frozenset(), {})}


class Classes(Machine):
    """Ports with classes behind ``dcb``, and everything else that the module runs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch, nic_qos, "_fabric.qos")
        self.options = {"ports": ["lo", "gone0"]}
        self.pfc = {port: lossless for port, (lossless, _classes) in BEFORE.items()}
        self.dscp = {port: dict(classes) for port, (_lossless, classes) in BEFORE.items()}

    def unit(self, timeout: int, _count: int = 0, *_: object) -> host_unit.HostUnit:
        return super().unit(timeout * _count + 60)

    def answer(self, argv: Sequence[str]) -> str:
        said = ""
        if argv[0] == "dcb":
            _dcb, thing, action, _dev, port, _kind, *entries = (word for word in argv if word != "-N")
            if port not in self.pfc:
                raise system.HostError("Attribute read: Operation not supported")
            pairs = qos.parse_dscp(" ".join(entries))
            match thing, action:
                case "pfc", "show":
                    said = " ".join(f"{n}:{'on' if n in self.pfc[port] else 'off'}" for n in range(8))
                case "pfc", "set":
                    self.pfc[port] = qos.parse_pfc(" ".join(entries))
                case "app", "show":
                    said = " ".join(f"{dscp}:{number}" for dscp, number in self.dscp[port].items())
                case "app", "replace":
                    self.dscp[port] |= pairs
                case "app", "del":
                    self.dscp[port] = {k: v for k, v in self.dscp[port].items() if (k, v) not in pairs.items()}
        return said

    def shows(self) -> dict[str, Any]:
        pfc = {port: sorted(classes) for port, classes in self.pfc.items()}
        dscp = {port: str(pairs) for port, pairs in self.dscp.items()}
        return super().shows() | {"ran": [], "pfc": pfc, "dscp": dscp}


def lose_port(machine: Classes) -> None:
    del machine.pfc["gone0"]


QOS: dict[str, list[Step]] = {
    "set, changed and restored": [
        {"check": True},
        {},
        {},
        {"roce_dscp": 24},
        {**ABSENT, "check": True},
        ABSENT,
        ABSENT,
    ],
    "restored without a port": [ABSENT, {}, lose_port, ABSENT, ABSENT],
    "somebody deleted the code": [{}, lambda machine: shutil.rmtree(machine.root / "library"), ABSENT],
    "a port without classes": [{"ports": ["lo", "mgmt0"]}],
    "invalid numbers": [{"lossless_class": 8}, {"roce_dscp": 64}, {"roce_dscp": 48}],
    "no rights": [lose_rights, {}],
    "a damaged record": [lambda machine: machine.record.write_text("{"), {}],
}


class Devices:
    """A host with a VF, also as it would be without an address, and with a pod and another namespace."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.options, self.may_look = place, {"sysfs_root": str(place / "good")}, True
        mlx5_vf(place / "good")
        mlx5_vf(place / "bare", address=None)
        pci_function(place / "pf", "enp1s0f0np0", "0000:01:00.0", total_vfs=8)
        patch.setattr(netns, "holders", self.holders)
        patch.setattr(AnsibleModule, "get_bin_path", lambda *_: None)

    def holders(self) -> list[netns.Holder]:
        if not self.may_look:
            raise system.HostError("/proc/7/ns/net: Permission denied. The task ran as user a, but needs root")
        inside = {"lo": {"mtu": 65536}, "net1": {"mtu": 9000}}
        names = {"cni-1": "gb10-serving/gemma-0-0", "x": ""}
        return [netns.Holder(Path("/run/netns") / name, name, (7,), pod, inside) for name, pod in names.items()]


def at(name: str, **more: Any) -> Step:
    return lambda host: {"sysfs_root": str(host.place / name), **more}


VF = {"rdma_device": "rocep1s0f0v0", "address": "10.100.0.1"}
GIDS: dict[str, list[Step]] = {
    "as expected": [{"expect": [VF], "mtu": 9000}],
    "another address": [{"expect": [{**VF, "address": "10.100.0.2"}]}],
    "nothing expected": [at("bare")],
    "pods": [at("none"), at("none", pods=True), at("none", pods=True, may_look=False)],
}


PFS: dict[str, list[Step]] = {"one": [at("pf")], "none": [at("none")]}


class Ports:
    """A sysfs with one port, and the module's file."""

    def __init__(self, place: Path, _patch: pytest.MonkeyPatch) -> None:
        self.root, self.record = place / "sys", place / "snapshot.json"
        self.options = {"sysfs_root": str(self.root), "path": str(self.record)}
        self.hides = r"\b[01](\.\d)?(?= s\b| min\b| seconds)|in .* s$"
        write(carrier_changes=2, speed=200000, out_of_sequence=0, np_cnp_sent=0)(self)

    def shows(self) -> dict[str, Any]:
        text = self.record.read_text() if self.record.exists() else ""
        return {
            "seconds": (self.last["seconds"] in {0, 1}) if "seconds" in self.last else "",
            "size": str(len(text) > 99),
        }

    last: dict[str, Any]


def write(**values: int) -> Any:
    def step(host: Ports) -> None:
        netdev = host.root / "class/net/enp1s0f0np0"
        counters = host.root / "class/infiniband/rocep1s0f0/ports/1/hw_counters"
        (netdev / "device").mkdir(parents=True, exist_ok=True)
        (netdev / "device/sriov_totalvfs").write_text("8\n")
        counters.mkdir(parents=True, exist_ok=True)
        for name, value in values.items():
            (netdev if name in {"carrier_changes", "speed"} else counters).joinpath(name).write_text(f"{value}\n")

    return step


HEALTH: dict[str, list[Step]] = {
    "the first, and a quiet time": [{}, {}],
    "reported once": [
        {},
        write(carrier_changes=4, speed=100000, out_of_sequence=7, np_cnp_sent=99),
        {"check": True},
        {},
        {},
    ],
    # A link that is down has no other speed, and counters that were reset count from zero.
    "down, after a reset": [write(out_of_sequence=50), {}, write(carrier_changes=3, speed=-1, out_of_sequence=2), {}],
    **{
        f"a file with {text!r}": [has(text), {}]
        for text in ("", "[]", '{"time": 1}', '{"time": "x", "links": 3, "counters": {}}')
    },
    "no directory": [lambda host: {"path": str(host.record.parent / "missing/snapshot.json")}],
}


test_each_step = steps_of(
    sriov_vf=(sriov_vf, Functions, VFS),
    nic_qos=(nic_qos, Classes, QOS),
    roce_gid_info=(roce_gid_info, Devices, GIDS),
    pf_info=(pf_info, Devices, PFS),
    fabric_health=(fabric_health, Ports, HEALTH),
)


def test_a_write_that_the_driver_refuses_has_its_reason(tmp_path: Path) -> None:
    pci_function(tmp_path, PF, "0000:01:00.0")
    (tmp_path / f"class/net/{PF}/device/sriov_numvfs").mkdir()
    with pytest.raises(system.HostError, match=rf"{PF}: sriov_numvfs = 2 was refused\. .*Is a directory"):
        sriov.Sysfs(tmp_path).write_numvfs(PF, 2)
