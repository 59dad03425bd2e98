# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the report for others has the facts that matter, and nothing that identifies a host."""

import copy
import ipaddress
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import stored
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import Combination, find_matching
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import (
    HEADER,
    check_hosts,
    describe_hosts,
)
from hypothesis import given
from hypothesis import strategies as st
from preflight_samples import GOOD

SCHEMA = Path(__file__).resolve().parents[5] / "plugins/profiles/schema/combinations.schema.json"
PFS = tuple(pf["name"] for pf in GOOD["pfs"])
ARGUMENTS = "root=UUID=0b9c quiet kho=off iommu.passthrough=1 ip=192.168.10.11"


def described(*raw: Any) -> str:
    hosts = []
    for number, facts in enumerate(raw):
        shaped, misread = shape_facts(facts)
        hosts.append(Host(f"sparkling{number}", shaped, pfs=PFS, misread=misread))
    return describe_hosts(hosts, check_hosts(hosts, {}))


OLD = {"kernel": "7.0.0-31-generic", "cma_kib": 0, "cma_free_kib": 9_751_756, "gpus": []}
ONE = {"command_line": ARGUMENTS, "swap": [{"name": "/s", "kind": "file", "kib": 2**24 + 5}]}
CLOCKS = [99_999.0, 100_000.0, -1.0]


def gpus(*clocks: float) -> dict[str, Any]:
    return {"gpus": [{**GOOD["gpus"][0], "max_clock_mhz": clock, "power_limit_w": 139.6} for clock in clocks]}


# Long lists are cut, and impossible numbers are left out.
LONG = {
    **gpus(*CLOCKS, *(1000.4 + number for number in range(9))),
    "swap": [{"name": "/s", "kind": "file", "kib": kib} for kib in (2**40, 2**40 - 1, 0, 2**20 + 1, 1, 5, 7)],
    "pfs": [{**pf, "firmware": f"28.4{n}.4028"} for n, pf in enumerate(10 * GOOD["pfs"][:1])],
}
CASES = {"three hosts, two of them alike": (ONE, OLD, ONE), "long lists": (LONG,), "few clocks": (gpus(*CLOCKS),)}


def lines(entry: dict[str, Any]) -> list[str]:
    """Return an entry with a line for each condition."""
    when = [", ".join(f"{key} {value}" for key, value in each.items()) for each in entry.pop("when")]
    return [f"{key}: {value}" for key, value in entry.items()] + when


def test_the_report_has_the_form_of_the_file_and_matches_its_hosts() -> None:
    told = {}
    for name, changes in CASES.items():
        raw = [copy.deepcopy(GOOD) | change for change in changes]
        text = described(*raw)
        assert text.startswith(HEADER)
        entries = yaml.safe_load(text)
        jsonschema.validate(entries, json.loads(SCHEMA.read_text(encoding="utf-8")))
        # Numbers that were left out, or that stand for others, may not match again.
        for facts, entry in zip(raw, entries, strict=False) if len(raw) > 1 else ():
            (match,) = find_matching(Host("x", shape_facts(facts)[0]).readable, [Combination(**entry)])
            assert match.severity == "note"
        told[name] = [line for entry in entries for line in lines(entry)]
    host = Host("sparkling", None, unread={"error": "no route to host 192.168.10.11", "address": "192.168.10.11"})
    unread = yaml.safe_load(describe_hosts([host, replace(host, name="sparkling2")], check_hosts([host], {})))
    stored.compare(
        "preflight_doctor", {**told, "hosts that were not read": [line for each in unread for line in lines(each)]}
    )


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all leaves, and of all names in mappings."""
    if isinstance(node, dict):
        return [place for key, value in node.items() for place in ((*path, key), *places(value, (*path, key)))]
    if isinstance(node, list):
        return [place for number, value in enumerate(node) for place in places(value, (*path, number))]
    return [path]


def put(facts: Any, path: tuple[Any, ...], value: Any) -> None:
    *steps, last = path
    try:
        for step in steps:
            facts = facts[step]
        facts[last] = value
    except (KeyError, IndexError, TypeError):  # this part was replaced before
        return


SECRETS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.integers(2**100, 2**128 - 1).map(lambda number: str(ipaddress.IPv6Address(number))),
    st.binary(min_size=6, max_size=6).map(lambda mac: mac.hex(":")),
    st.uuids(version=4).map(str),
    st.uuids(version=4).map(lambda found: found.hex),
    st.from_regex(r"[0-9]{9,13}", fullmatch=True),
    st.from_regex(r"[A-Z]{2}[0-9]{7}[A-Z0-9]{2}", fullmatch=True),
    st.from_regex(r"spark-[a-z]{4}\.example", fullmatch=True),
)
# Forms in which a stranger may hide it in a fact that is copied.
TEXTS = [
    *("{}", "6.17.0-{}", "7.0.{}", "580.{}", "5.36_{}", "28.45.{}", "1.18.0-{}", "NVIDIA GB10 {}", "NVIDIA GB10{}"),
    *(
        "kho={}",
        "kho=off {}",
        "\n{}",
        "1:{}",
        "{}-nvidia",
        "{}.0",
        "{} kho=off",
        "{}\nkho=off",
        "6.17.0-1014-nvidia-{}",
    ),
]
FORMS: list[Callable[[str], Any]] = [
    *(text.format for text in TEXTS),
    lambda secret: [secret],
    lambda secret: {secret: secret},
]
PLACES = places({**GOOD, "swap": [{"name": "/swap.img", "kind": "file", "kib": 5}]})


@given(st.lists(st.tuples(SECRETS, st.sampled_from(FORMS), st.sampled_from(PLACES)), min_size=20, max_size=40))
def test_nothing_that_identifies_a_host_is_in_it(
    hidden: list[tuple[str, Callable[[str], Any], tuple[Any, ...]]],
) -> None:
    raw = copy.deepcopy(GOOD)
    for secret, form, path in hidden:
        put(raw, path, form(secret))
    text = described(raw, GOOD).partition("\n- ")[2]
    for secret, _form, _path in hidden:
        assert secret not in text


def test_no_fact_hides_an_identity() -> None:
    secrets = ("192.168.10.11", "10.0.0.7", "fe80::1ff:fe23:4567", "48:b0:2d:01:02:03", "1990224501234", "MT2437X00042")
    for secret in (*secrets, str(uuid.UUID(int=2**127 + 5)), "spark-alice.example"):
        for form in FORMS:
            raw = copy.deepcopy(GOOD)
            raw["swap"] = [{"name": "/swap.img", "kind": "file", "kib": 5}]
            # The deepest first: what is put into a part replaces those within it.
            for path in sorted(PLACES, key=len, reverse=True):
                if len(path) > 1 or not isinstance(raw[path[0]], (dict, list)):
                    put(raw, path, form(secret))
            shaped, _misread = shape_facts(raw)
            text = describe_hosts([Host("x", shaped, pfs=PFS)], [])
            assert secret not in text, (form(secret), text)
