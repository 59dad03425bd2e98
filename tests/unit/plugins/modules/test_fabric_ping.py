# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which peers are pinged, and which layer a lost packet, a missing address or another MAC is blamed on."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import PF_INDEX
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.modules import fabric_ping
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.check_matrix import ping_verdict
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import fabric
from module_runs import Step, become_nobody, steps_of
from ring_samples import cabled_plan

Json = dict[str, Any]
PLAN = plan_fabric(fabric(3, gb10_fabric_vf_count=1))[0].as_dict()
OWN, PEER = (PLAN["hosts"][host]["vfs"] for host in ("spark1", "spark2"))
FIRST = OWN[0]["netdev"]
HOLDER_OF = netns.holder_of
UNKNOWN = "AA:00:00:00:00:01"


class Host:
    """A host whose pings are answered, but for what its attributes say of the first rail.

    ``codes`` are exit statuses: of a full packet, of a small one and of the second full one. ``link`` changes the
    interface, which the pod ``holder`` has, if any; ``lladdr`` and ``state`` are those of the neighbours.
    """

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.options = patch, {"plan": PLAN, "host": "spark1"}
        self.codes: Sequence[int] = (0,)
        self.link: Json | None = {}
        self.holder, self.lladdr, self.state = "", "", "REACHABLE"
        self.commands: list[str] = []
        patch.setattr(system, "links", lambda: {} if self.holder else self.links())
        self.lookups: list[str] = []
        patch.setattr(netns, "holders", self.holders)
        patch.setattr(netns, "holder_of", self.holder_of)
        patch.setattr(system, "run", self.run)
        patch.setattr(system, "run_json", self.neighbours)

    def links(self) -> dict[str, Json]:
        links = {
            vf["netdev"]: {
                "ifname": vf["netdev"],
                "mtu": 9000,
                "operstate": "UP",
                "addr_info": [{"local": vf["address"]}],
            }
            for vf in OWN
        }
        if self.link is None:
            return {name: link for name, link in links.items() if name != FIRST}
        return links | {FIRST: links[FIRST] | self.link}

    def holders(self) -> list[netns.Holder]:
        self.lookups.append("all")
        inside = {name: {**link, "ifalias": name, "ifname": "net1"} for name, link in self.links().items()}
        held = {name: link for name, link in inside.items() if name == FIRST}
        return [netns.Holder(Path("/run/netns/cni-1"), "cni-1", (7,), self.holder.strip(), held)] if self.holder else []

    def holder_of(self, name: str, *words: Any) -> netns.Holder | None:
        self.lookups.append(name)
        return HOLDER_OF(name, *words)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        code, interface = 0, argv[argv.index("-I") + 1]
        if interface in (FIRST, "net1") and argv[-1] in (PEER[0]["address"], PEER[1]["address"]):
            asked = [one for one in self.commands if one.split()[-1] == argv[-1]]
            code = self.codes[min(len(asked), len(self.codes) - 1)]
            self.commands.append(f"{options['timeout']} s: {' '.join(argv)}")
        return subprocess.CompletedProcess(argv, code, "rtt min/avg/max/mdev = 0.1/0.250/0.4/0.1 ms", "")

    def neighbours(self, argv: Sequence[str]) -> list[Json]:
        vfs = [vf for host in PLAN["hosts"].values() for vf in host["vfs"]]
        address = argv[argv.index("to") + 1]
        known = {vf["address"]: {"lladdr": vf["mac"], "state": ["REACHABLE"]} for vf in vfs}
        if address == PEER[0]["address"]:
            seen = {"state": [self.state]} | ({"lladdr": self.lladdr} if self.lladdr else {})
            return [known[address] | seen] if self.state == "REACHABLE" else [seen] if self.state else []
        return [known[address]]

    def shows(self) -> Json:
        results = self.last["results"]
        shown: Json = {"results": [], "lookups": self.lookups}
        for one in results:
            to = f"{one['peer']} {one['address']} from {one['netdev']} at {one['where']}"
            shown["results"].append(f"{to}: ok={one['ok']} {one['layer']} {one['rtt_ms']} ms {one['reason']}")
        if results:
            verdict = ping_verdict({"spark1": results, "spark2": []}, ["spark1", "spark2"])
            shown["verdict"] = f"ok={verdict['ok']} {verdict['msg'].splitlines()[-1]}"
        self.lookups = []
        return shown

    last: Json


def lose_rights(host: Host) -> None:
    """Without a word about it, a VF in a pod would be reported as missing."""

    def stat(path: Path, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    host.patch.undo()
    become_nobody(host.patch)
    host.patch.setattr(system, "links", dict)
    host.patch.setattr(Path, "stat", stat)


def lose_programs(host: Host) -> None:
    host.patch.undo()
    host.patch.setenv("PATH", "/nonexistent")


POD = "gb10-serving/g-0-0"
BROKEN: list[Json | None] = [None, {"operstate": "DOWN"}, {"addr_info": []}, {"mtu": 1500}]
CASES: dict[str, list[Step]] = {
    "all pass": [{"count": 2, "wait": 4}],
    "no such host": [{"host": "spark9"}],
    "no program": [lose_programs, {}],
    "no right to look into pods": [lose_rights, {}],
    "no VF, no carrier, no address, a small MTU": [{"link": link} for link in BROKEN],
    "a carrier without a state": [{"link": {"operstate": "UNKNOWN", "flags": ["LOWER_UP"]}}],
    # At its start a pod gets its addresses, and the MTU that the VF has.
    "in a pod": [
        {"holder": POD, "link": link, "pods_only": pods_only}
        for link, pods_only in (({}, True), ({}, False), ({"addr_info": []}, True), ({"mtu": 1500}, True))
    ],
    "in a namespace of no pod": [{"holder": " ", "pods_only": True, "link": {"mtu": 1500}}],
    "a second try passes": [{"codes": (1, 0, 0)}],
    "only small packets pass": [{"codes": (1, 0, 1)}],
    "nothing passes": [{"codes": (1,), "state": state} for state in ("REACHABLE", "FAILED", "INCOMPLETE", "")],
    "another rail and an unknown machine answer": [
        {"lladdr": mac, "codes": (code,)} for mac in (PEER[1]["mac"].upper(), UNKNOWN) for code in (0, 1)
    ],
    "the planned MAC in capitals": [{"lladdr": PEER[0]["mac"].upper()}],
}
test_each_kind_of_answer = steps_of(fabric_ping=(fabric_ping, Host, CASES))


def test_hosts_without_a_common_rail_are_pinged_over_the_hosts_between() -> None:
    plan = cabled_plan(4, gb10_fabric_transit=True)
    over = [target for target in fabric_ping.targets(plan, "spark1") if target.vf_index == PF_INDEX]
    assert {target.peer for target in over} == {"spark3"}
    assert len(over) == 4, "both halves of both ways"
    assert {target.netdev for target in over} == {"enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"}
    assert all(target.address.endswith(".255.3") and target.source.endswith(".255.1") for target in over)
    layer, reason = fabric_ping.after_failure(over[0], small_passes=False, state="")
    assert layer == "ip"
    assert "over the hosts between" in reason
    assert not [target for target in fabric_ping.targets(cabled_plan(4), "spark1") if target.vf_index == PF_INDEX]
