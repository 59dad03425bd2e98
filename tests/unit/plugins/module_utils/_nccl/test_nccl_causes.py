# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every cause of the catalogue has a line that matches and a similar line that does not."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.catalogue import CATALOGUE
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import find_cause, literals
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.model import Cause

QP = "misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with"
GOT = "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<1> with"
# {cause: (a line that it matches, a similar line that it does not match)}
LINES = {
    "net_forced_missing": (
        "plugin/net.cc:300 NCCL WARN Failed to initialize any NET plugin",
        "NCCL INFO Initialized NET plugin IB",
    ),
    "no_socket_interface": (
        "bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
        "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    ),
    "net_mismatch": (
        "init.cc:1339 NCCL WARN Detected mixed local Net device counts across ranks (min 1, max 2).",
        "NCCL INFO Local Net device counts across ranks: min 2 max 2",
    ),
    "qp_unreachable": (f"{QP} 101 Network is unreachable, on dev mlx5_0:1", "ping: connect: Network is unreachable"),
    "qp_gid_index": (f"{QP} 22 Invalid argument, on dev mlx5_0:1", "NCCL INFO Invalid argument"),
    "qp_netns": (f"{QP} 19 No such device, on dev mlx5_0:1", "open: No such device"),
    "qp_failed": (f"{QP} 5 Input/output error, on dev mlx5_0:1", "NCCL INFO ibv_modify_qp retry succeeded"),
    "completion_retry": (f"{GOT} error 12, opcode 0, len 32768", "NCCL INFO NET/IB : completion queue of 12 entries"),
    "completion_rnr": (f"{GOT} status=IBV_WC_RNR_RETRY_EXC_ERR(13) opcode=0", "NCCL INFO NET/IB : status=13"),
    "completion_flushed": (f"{GOT} status=5 opcode=0", "NCCL INFO NET/IB : flushed 5 requests"),
    "completion_error": (f"{GOT} error 10, opcode 0", "NCCL INFO NET/IB : 10 completions"),
    "async_fatal": (
        "NCCL WARN NET/IB : mlx5_0:1 async fatal event on QP (1): QP fatal error",
        "NCCL INFO NET/IB : async event thread started",
    ),
    "gid_changed": (
        "NCCL WARN NET/IB : mlx5_0:1 GID table changed",
        "NCCL INFO NET/IB : GID table of mlx5_0 has 4 entries",
    ),
    "wrong_peer_type": (
        "misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 3 != 4",
        "NCCL INFO socketFinalizeAccept: type 3",
    ),
    "reg_mr": (
        "misc/ibvwrap.cc:200 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "NCCL INFO Call to ibv_reg_mr done",
    ),
    "net_not_in_topology": ("NCCL WARN Could not find NET with id 0", "NCCL INFO NET with id 0"),
    "verbs_call": (
        "misc/ibvwrap.cc:100 NCCL WARN Call to ibv_query_port failed with error Bad address",
        "NCCL INFO Call to ibv_query_port",
    ),
    "ofi_no_provider": (
        "NCCL WARN NET/OFI No eligible providers were found",
        "NCCL INFO NET/OFI Selected provider is efa",
    ),
    "ib_disabled": (
        "NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
        "NCCL INFO NCCL_IB_DISABLE set by environment to 0.",
    ),
    "net_forced_socket": (
        "NCCL INFO NCCL_NET set by environment to Socket",
        "NCCL INFO NCCL_NET set by environment to IB",
    ),
    "hca_selection": ("NCCL INFO NCCL_IB_HCA set to enp1s0f0np0", "NCCL INFO NCCL_IB_HCA was not given"),
    "no_libibverbs": ("NCCL INFO Failed to open libibverbs.so[.1]", "NCCL INFO opened libibverbs.so.1"),
    "device_open": ("NCCL WARN NET/IB : Unable to open device mlx5_0", "NCCL INFO NET/IB : open device mlx5_0"),
    "no_rdma_device": ("NCCL INFO NET/IB : No device found.", "NCCL INFO NET/IB : 2 devices found"),
    "plugin_failed": (
        "NCCL ATTN Failed to initialize NET plugin SPCX",
        "NCCL ATTN Failed to initialize NET plugin IB",
    ),
    "plugin_missing": (
        "NCCL INFO NET/Plugin: Could not find: libnccl-net-mine.so. Using internal network plugin.",
        "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    ),
    "link_local_gid": (
        "NCCL INFO NET/IB: NCCL Dev 0 GID 0 (80FE/1) fifoRkey=0x1",
        "NCCL INFO GID 3 (0/164640AFFFF0000)",
    ),
    "rail_mismatch": (
        "NCCL INFO NET/IB : There are mismatched physical devices between local (a) and remote (b)",
        "NCCL INFO NET/IB : physical devices of local (a) and remote (b)",
    ),
    "no_gdr_module": (
        "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)",
        "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
    ),
    "dev_override": (
        "NCCL INFO NET/IB: Subnet-aware routing: overriding dev 1 with dev 0",
        "NCCL INFO NCCL_IB_SUBNET_AWARE_ROUTING set by environment to 1.",
    ),
    "cuda_failure": ("NCCL INFO Cuda failure 2 'out of memory'", "NCCL INFO cudaDriverVersion 13000"),
    "watchdog": (
        "ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        "ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog started",
    ),
    "ofi_reg_mr": (
        "NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12",
        "NCCL INFO NET/OFI Using memory registration cache",
    ),
    "duplicate_gpu": (
        "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device f000",
        "NCCL INFO rank 0 and rank 1 on different GPUs",
    ),
    "peer_gone": (
        "NCCL INFO misc/socket.cc:58 Connection closed by remote peer node2<42830>",
        "NCCL INFO Connected all rings",
    ),
    "proxy_failed": (
        "NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=3",
        "NCCL INFO [Proxy Service] Device 0 CPU core 5",
    ),
    "bootstrap": (
        "NCCL WARN Bootstrap Root : mismatch in rank count from procs 2 : 3",
        "NCCL INFO bootstrapSplit: comm 0x1 parent 0x2 rank 0 nranks 2",
    ),
    "nccl_error": ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:77", "the NCCL error counter is 0"),
}
# Other wordings of these causes at level INFO, which an earlier reader dropped.
MORE = {
    "peer_gone": ("NCCL INFO ncclSocketInit: connecting to address 10.0.0.1<0>", "NCCL INFO socket ran out of retries"),
    "cuda_failure": ("NCCL INFO enqueue.cc:10 Cuda failure 700",),
    "ib_disabled": ("NCCL INFO NCCL_IBEXT_DISABLE set by environment to 1.",),
}


def test_every_cause_with_a_pattern_has_lines() -> None:
    # test_nccl_overall has the lines of mtu_differs, which one line alone cannot show.
    assert set(LINES) == {cause.id for cause in CATALOGUE} - {"mtu_differs"}
    assert all(cause.summary and cause.remedy for cause in CATALOGUE)


@pytest.mark.parametrize("cause", LINES)
def test_a_cause_matches_its_line_and_not_the_similar_one(cause: str) -> None:
    line, miss = LINES[cause]
    assert find_cause(line) == cause
    assert find_cause(miss) != cause
    assert [find_cause(more) for more in MORE.get(cause, ())] == [cause] * len(MORE.get(cause, ()))


@pytest.mark.parametrize("cause", CATALOGUE, ids=lambda cause: cause.id)
def test_no_line_that_matches_is_skipped(cause: Cause) -> None:
    """``find_cause`` looks for plain text before it tries a pattern."""
    hints = literals(cause.pattern)
    matching = [text for lines in [*LINES.values(), *MORE.values()] for text in lines]
    for line in matching:
        if cause.pattern and re.search(cause.pattern, line):
            assert not hints or any(hint in line for hint in hints)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"Got completion.*(?:error 12|status=12)", ("Got completion",)),
        (r"NET/IB ?: No (?:IB )?device", ("NET/IB",)),
        (r"[Nn]o socket|a\.b", ("o socket", "a.b")),
        (r"\d+", ()),
        (r"wrong type \d+ != \d+", ("wrong type ",)),
    ],
)
def test_the_plain_text_of_a_pattern(pattern: str, found: tuple[str, ...]) -> None:
    assert literals(pattern) == found
