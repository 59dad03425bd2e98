# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which values of NCCL's variables keep the proof of the transport out of its files."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import VARIABLES, blinder, blinds

# {variable: {how its values hide the transport: these values}}
CASES = {
    "NCCL_DEBUG": {"": "INFO|info|Trace|ABORT", "silent": "WARN|VERSION|| INFO|4"},
    "NCCL_DEBUG_SUBSYS": {
        # NCCL knows the sign only at the beginning of the list.
        "": "INIT,NET,ENV|net,init|ALL|COLL,all|^COLL,TUNING|^|INIT,NET,^NET",
        "masked": "INIT|NET|COLL,TUNING||INIT, NET|INITNET|^NET|^COLL,init|^COLL, NET|^ALL",
    },
    "NCCL_CONF_FILE": {"conf_file": "/tmp/nccl.conf", "": ""},
    "NCCL_ENV_PLUGIN": {"conf_file": "mine"},
    "NCCL_HOSTID": {"host_id": "node|"},
    "NCCL_ALGO": {"": "Ring"},
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_hides_nccl_s_transport_or_not(name: str) -> None:
    found = {how: [blinds(name, value) for value in values.split("|")] for how, values in CASES[name].items()}
    assert found == {how: [how] * len(each) for how, each in found.items()}


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}, ""),
        ({"NCCL_HOSTID": "x", "NCCL_DEBUG": "WARN"}, "NCCL_DEBUG=WARN"),
        ({"NCCL_DEBUG": "INFO", "NCCL_HOSTID": "x"}, "NCCL_HOSTID=x"),
        ({"NCCL_DEBUG": 3}, "NCCL_DEBUG=3"),
        ([], ""),
        (3, ""),
    ],
)
def test_the_first_variable_that_hides_is_named(written: object, found: str) -> None:
    assert blinder(json.dumps(written).encode()) == found


@pytest.mark.parametrize("written", [b"", b"{", b"\xff\xfe"])
def test_what_cannot_be_read_names_no_variable(written: bytes) -> None:
    assert blinder(written) == ""


def test_the_start_of_a_rank_writes_the_variables_that_the_gate_knows() -> None:
    spec = spec_from_file_location("start_rank", Path(__file__).parents[5] / "roles/sglang/files/start_rank.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.HIDING) == set(VARIABLES)
