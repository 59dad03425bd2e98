# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.proof import SCRIPT, parse_environment


def test_the_first_value_of_a_variable_counts_and_conf_files_set_what_the_environment_does_not() -> None:
    text = (
        "#env\nNCCL_DEBUG=INFO\n#conf\n# NCCL_ALGO=Ring\nNCCL_NET=IB\r\nno sign\n\n"
        "NCCL_NET=Socket\nNCCL_IB_DISABLE=1\n\n"
        "#hcas\nrocep1s0f0v0\n#netdevs\nlo\nnet1\n"
    )
    seen = parse_environment(text)
    assert seen.variables == {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}
    assert (seen.hcas, seen.netdevs) == (["rocep1s0f0v0"], ["lo", "net1"])
    assert "TOKEN" not in SCRIPT


LIMITED = ["CmaTotal: 65536 kB", "CmaFree: 60000 kB", "Max locked memory 8388608 8388608 bytes"]


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (["CmaTotal:              0 kB", "CmaFree:         9700000 kB"], "kernel"),
        (["CmaTotal:              0 kB", "CmaFree:               0 kB"], ""),
        (["CmaTotal:          65536 kB", "CmaFree:           60000 kB"], ""),
        ([*LIMITED, "CapEff:\t00000000a80425fb"], "memlock"),
        ([*LIMITED, "CapEff:\t00000000a80465fb"], ""),
        (["Max locked memory         unlimited            unlimited            bytes"], ""),
        ([], ""),
    ],
    ids=["kho", "no CMA", "CMA", "limited", "IPC_LOCK", "unlimited", "nothing read"],
)
def test_why_memory_cannot_be_pinned(memory: list[str], why: str) -> None:
    assert parse_environment("\n".join(["#netdevs", "eth0", "#memory", *memory])).pins == why
