# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which values of NCCL's variables keep the proof of the transport out of its files."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import VARIABLES, blinder, blinds

CASES = [
    ("NCCL_DEBUG", "INFO", ""),
    ("NCCL_DEBUG", "info", ""),
    ("NCCL_DEBUG", "Trace", ""),
    ("NCCL_DEBUG", "ABORT", ""),
    ("NCCL_DEBUG", "WARN", "silent"),
    ("NCCL_DEBUG", "VERSION", "silent"),
    ("NCCL_DEBUG", "", "silent"),
    ("NCCL_DEBUG", " INFO", "silent"),
    ("NCCL_DEBUG", "4", "silent"),
    ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV", ""),
    ("NCCL_DEBUG_SUBSYS", "net,init", ""),
    ("NCCL_DEBUG_SUBSYS", "ALL", ""),
    ("NCCL_DEBUG_SUBSYS", "COLL,all", ""),
    ("NCCL_DEBUG_SUBSYS", "INIT", "masked"),
    ("NCCL_DEBUG_SUBSYS", "NET", "masked"),
    ("NCCL_DEBUG_SUBSYS", "COLL,TUNING", "masked"),
    ("NCCL_DEBUG_SUBSYS", "", "masked"),
    ("NCCL_DEBUG_SUBSYS", "INIT, NET", "masked"),
    ("NCCL_DEBUG_SUBSYS", "INITNET", "masked"),
    ("NCCL_DEBUG_SUBSYS", "^COLL,TUNING", ""),
    ("NCCL_DEBUG_SUBSYS", "^", ""),
    ("NCCL_DEBUG_SUBSYS", "^NET", "masked"),
    ("NCCL_DEBUG_SUBSYS", "^COLL,init", "masked"),
    ("NCCL_DEBUG_SUBSYS", "^COLL, NET", "masked"),
    ("NCCL_DEBUG_SUBSYS", "^ALL", "masked"),
    # NCCL knows the sign only at the beginning of the list.
    ("NCCL_DEBUG_SUBSYS", "INIT,NET,^NET", ""),
    ("NCCL_CONF_FILE", "/tmp/nccl.conf", "conf_file"),
    ("NCCL_CONF_FILE", "", ""),
    ("NCCL_ENV_PLUGIN", "mine", "conf_file"),
    ("NCCL_HOSTID", "node", "host_id"),
    ("NCCL_HOSTID", "", "host_id"),
    ("NCCL_ALGO", "Ring", ""),
]


@pytest.mark.parametrize(("name", "value", "how"), CASES)
def test_a_value_hides_nccl_s_transport_or_not(name: str, value: str, how: str) -> None:
    assert blinds(name, value) == how


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}, ""),
        ({"NCCL_HOSTID": "x", "NCCL_DEBUG": "WARN"}, "NCCL_DEBUG=WARN"),
        ({"NCCL_DEBUG": "INFO", "NCCL_HOSTID": "x"}, "NCCL_HOSTID=x"),
        ({"NCCL_DEBUG": 3}, "NCCL_DEBUG=3"),
        ([], ""),
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
