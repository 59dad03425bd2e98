# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check NCCL's environment before or while it is used. Private to the collection.

Source: param.cc, socket.cc, net_ib and debug.cc of NCCL 2.17.1 … 2.30.7, the libraries of 2.31.2 and 2.32.3, and NCCL's
manual of environment variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import VARIABLES, blinds
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import is_tcp

from .._controller.data import Rules

# Rule, variable, and the words of the rule's sentences.
_Said = Iterator[tuple[str, str, dict[str, str]]]

# What NCCL reads in every NVIDIA/nccl tag 2.17.1 … 2.30.7 (NCCL_PARAM, ncclGetEnv, ncclGetLevel), and in 2.31.2 and
# 2.32.3, which have no public tag (section .rodata of libnccl.so.2 in the packages nvidia-nccl-cu13), without "NCCL_".
# NCCL reads these with strtoll, which turns text without a number into 0.
_INTEGERS = """
AGG_CHANNEL_SIZE ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CE_CHUNK_SIZE CE_COLL_AG_MULTICAST_THRESHOLD
CE_INTRA_GPU_MEMCPY_ENABLE CFT_ENABLE CGA_CLUSTER_SIZE CHECK_POINTERS CHUNK_SIZE COLLNET_ENABLE COLLNET_NODE_THRESHOLD
COMM_BLOCKING COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONNECT_ROUND_MAX_PEERS CREATE_THREAD_CONTEXT
CROSS_NIC CUMEM_ENABLE CUMEM_HOST_ENABLE DEV_API_JIT DIAGNOSTICS_ECC_THRESHOLD DIAGNOSTICS_IB_BW_TIMEOUT
DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK ENQUEUE_REARCH_ENABLE GDAKI_FORCE_MCST
GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
GDRCOPY_USE_INTERNAL_DMABUF GDR_FLUSH_DISABLE GIN_COUNTER_POOL_SIZE GIN_ENABLE GIN_ERROR_QUERY_SEC
GIN_EXCLUSIVE_CONTEXTS GIN_GDAKI_LAG_AWARE_DISABLE GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC
GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_OOO_OPT GIN_IB_TC GIN_NCONNECTIONS GIN_NCONTEXTS GIN_PLUGIN_REF_COUNT
GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH GIN_PROXY_QUEUE_SIZE GIN_SIGNAL_POOL_SIZE GIN_TYPE GRAPH_DUMP_FILE_RANK
GRAPH_HELPER_DISABLE GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM
HIER_CE_COLL_AG_RAIL_RING_ENABLE HIER_CE_COLL_NUM_CTX IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_DATA_DIRECT
IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_EVENT_BASED_LB IB_EVENT_BASED_LB_REMOTE IB_FIFO_TC IB_GID_INDEX
IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_OOO_RQ IB_PCI_RELAXED_ORDERING
IB_PKEY IB_PKEY_VALUE IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QPS_PER_CONNECTION IB_QUERY_PORT_SPEED
IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS
IB_ROCE_VERSION_NUM IB_ROUTABLE_FLID_GID_INDEX IB_SL IB_SORT_MERGE_NICS IB_SPLIT_DATA_ON_QPS IB_SUBNET_AWARE_ROUTING
IB_SUBNET_PREFIX_LEN IB_TC IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL IB_WQE_LATENCY_REPORT
IB_WQE_LATENCY_THRESHOLD_NS IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P IGNORE_NET_MISMATCH
IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER
LL128_BUFFSIZE LL128_C2C LL128_NTHREADS LL_BUFFSIZE LOCAL_REGISTER LSA_TEAM_SIZE MAX_CTAS MAX_NCHANNELS MAX_NRINGS
MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS MLOPART_RDMA_ENABLE MNNVL
MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID
MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER NCHANNELS_PER_NET_PEER NET_DISABLE_INTRA NET_FORCE_FLUSH NET_GDR_C2C
NET_GDR_MLOPART NET_GDR_READ NET_OPTIONAL_RECV_COMPLETION NET_OVERHEAD NET_PLUGIN_REF_COUNT NET_SHARED_BUFFERS
NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NUM_RMA_CTX NUM_RMA_INT_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLSTREE_MAX_CHUNKSIZE NVLS_CHUNKSIZE NVLS_ENABLE NVLS_NCHANNELS NVLS_UB_SIZE
NVTX_DISABLE OOB_NET_ENABLE P2P_DIRECT_DISABLE P2P_DISABLE P2P_EPOCH_ENABLE P2P_LL_THRESHOLD P2P_MAX_PEERS
P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PER_CHANNEL_NET_BW P2P_PER_CHANNEL_REG_NET_BW P2P_PXN_LEVEL
P2P_READ_ENABLE P2P_SCHEDULE_GROUP_SIZE P2P_USE_CUDA_MEMCPY PAT_ENABLE PROGRESS_APPENDOP_FREQ
PROGRESS_COUNTER_MONITOR_POLL_MS PROGRESS_COUNTER_MONITOR_STALE_MS PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC
PROXY_APPEND_BATCH_SIZE PROXY_DUMP_SIGNAL PXN_C2C PXN_DISABLE RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS
RMA_DISABLE RMA_EAGER_INIT RMA_IB_WR_BATCHSIZE RMA_MULTI_CTX_THRESHOLD RMA_PLUGIN_REF_COUNT RMA_PROXY_DUMP_SIGNAL
RMA_PROXY_QUEUE_SIZE RUNTIME_CONNECT SET_CPU_STACK_SIZE SET_STACK_SIZE SET_THREAD_NAME SHADOW_MEMPOOL_MAX_SIZE
SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SOCKET_INLINE
SOCKET_MIN_TASKSIZE SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RCVBUF SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC
SOCKET_SNDBUF SYM_CE_THRESHOLD SYM_CTAS SYM_GIN_KERNELS_ENABLE SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES
SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE TOPO_DUMP_FILE_RANK TOPO_SCATTER_START_NET TOPO_SPLIT_MLOPART UID_STAGGER_RATE
UID_STAGGER_THRESHOLD UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES
WORK_FIFO_BYTES WORK_FIFO_DEPTH
"""
# Names, lists, paths and addresses.
_STRINGS = """
ALGO CHECK_MODE COMM_ID CONF_FILE CTA_POLICY CUDA_PATH DEBUG DEBUG_FILE DEBUG_LEVELS DEBUG_SUBSYS
DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS ENV_PLUGIN GIN_PLUGIN GRAPH_DUMP_FILE GRAPH_FILE HOSTID IBVERBS_LIB
IB_ADDR_FAMILY IB_ADDR_RANGE IB_HCA IB_RAIL_POLICY LAUNCH_MODE NET NETDEVS_POLICY NET_FORCE_MERGE NET_GDR_LEVEL
NET_MERGE_LEVEL NET_MERGE_POLICY NET_PLUGIN NO_CACHE OOB_NET_IFNAME P2P_LEVEL PARAM_DUMP_ALL PROFILER_PLUGIN
PROGRESS_COUNTERS PROTO PROXY_CPUSET PROXY_PROFILE RAS_ADDR RMA_PLUGIN RUN_DIAGNOSTICS RUN_RAS_DIAGNOSTICS
SOCKET_FAMILY SOCKET_IFNAME SOCKET_MAGIC SYM_KERNEL THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_FILE TUNER_PLUGIN
"""
# Plugins, wrappers and tools read these variables, not NCCL. Their values are not checked.
_FOREIGN = """
FASTRAK_ GPUDIRECTTCPX_ GPUVIZ_ IBEXT_ INSPECTOR_ OFI_ PLUGIN_ PROFILE SHARP_ SPCX_ TESTS_ TUNER_ UCX_
"""
# Names that users set although NCCL never reads them.
_NOT_NCCL = {
    "NCCL_TIMEOUT": "set the time-out where the process group is made (SGLang: --dist-timeout)",
    "NCCL_ASYNC_ERROR_HANDLING": "PyTorch reads TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "PyTorch reads TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "PyTorch reads TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_USE_COMM_NONBLOCKING": "PyTorch reads TORCH_NCCL_USE_COMM_NONBLOCKING",
    "NCCL_TREE_THRESHOLD": "NCCL 2.5 removed it; use NCCL_ALGO",
    "NCCL_SOCKET_NSOCKS": "the variable is NCCL_NSOCKS_PERTHREAD",
}

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)$")
# strtoll with base 0 stops at the first character that is no digit, and takes 0x for base 16 and 0 for base 8.
_STRTOLL = re.compile(r"\s*([+-]?)(0[xX](?=[0-9a-fA-F])[0-9a-fA-F]+|0[0-7]*|[1-9]\d*|)")
_NETDEV = re.compile(r"(en|eth|wl|ww|br|bond|docker|cni|flannel|net\d|lo$)")
_HCA = re.compile(r"(mlx\d|roce|ibp|ibs|bnxt|irdma|efa_|rxe|siw|hns)")
_rules = Rules("_serving", "NCCL 2.17.1 to 2.32.3")


def _full(names: str) -> tuple[str, ...]:
    return tuple(f"NCCL_{name}" for name in names.split())


INTEGERS, _FOREIGN_PREFIXES = _full(_INTEGERS), _full(_FOREIGN)
KNOWN = INTEGERS + _full(_STRINGS)


def read_integer(value: str) -> int | None:
    """Return the number that NCCL takes from a variable (strtoll in param.cc), None if it takes its default."""
    found = _STRTOLL.match(value)
    if not value or found is None:
        return None
    sign, digits = found.groups()
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    number = int(digits or "0", base) * (-1 if sign == "-" else 1)
    return number if -(1 << 63) <= number < 1 << 63 else None


def lint_env(
    env: Mapping[str, str], *, expect_rdma: bool, hcas: Sequence[str], netdevs: Sequence[str], where: str = ""
) -> list[Finding]:
    """Return all findings about ``env``, worst first.

    ``hcas`` and ``netdevs`` are the RDMA devices and interfaces that the process will see (empty: unknown). ``where``
    is the rank or pod that the findings name.
    """
    fails = "initialisation then fails" if env.get("NCCL_NET") == "IB" else "NCCL then falls back to TCP silently"
    logging = {"NCCL_DEBUG": ""} | {name: env[name] for name in VARIABLES if name in env}
    found = [
        *_names(env),
        *_transport(env, expect_rdma),
        *_devices(env, "NCCL_IB_HCA", hcas, netdevs, _NETDEV, ("an RDMA device (rdma link)", fails)),
        *_devices(
            env,
            "NCCL_SOCKET_IFNAME",
            netdevs,
            hcas,
            _HCA,
            ("a network interface (ip link)", "NCCL then fails with 'no socket interface found'"),
        ),
        # Without NCCL_DEBUG, NCCL logs no INFO.
        *((how, key, {}) for key, value in logging.items() if (how := blinds(key, value))),
        *_others(env, netdevs),
    ]
    return sort_findings(
        _rules.finding(f"nccl.env.{rule}", env.get(key), where, key=key, **words) for rule, key, words in found
    )


def _names(env: Mapping[str, str]) -> _Said:
    for key, value in env.items():
        if key in _NOT_NCCL:
            yield "unknown/other", key, {"instead": _NOT_NCCL[key]}
        elif key.startswith("NCCL_") and key not in KNOWN and not key.startswith(_FOREIGN_PREFIXES):
            near = difflib.get_close_matches(key, KNOWN, 1, 0.8)
            yield "unknown", key, {"hint": f"Did you mean {near[0]}?" if near else "Remove it, or check the spelling"}
        if key in INTEGERS and not value:
            yield "noop/number", key, {}
        elif key in INTEGERS and not _INTEGER.match(value.strip()):
            yield "integer", key, {"number": str(read_integer(value))}
        elif key in KNOWN and (value != value.strip() or value.startswith(('"', "'"))):
            yield "quoted", key, {}


def _transport(env: Mapping[str, str], expect_rdma: bool) -> _Said:
    net, disable = env.get("NCCL_NET"), env.get("NCCL_IB_DISABLE", "").strip()
    off = bool(read_integer(disable))
    if net == "":
        yield "empty/net", "NCCL_NET", {}
    if disable == "0":
        yield "noop/disable", "NCCL_IB_DISABLE", {}
    if expect_rdma and off:
        yield "disabled", "NCCL_IB_DISABLE", {}
    if expect_rdma and net is not None and is_tcp(net):
        yield "socket", "NCCL_NET", {}
    if net and net.upper().startswith("IB") and off:
        yield "contradiction", "NCCL_NET", {}
    if not expect_rdma and net and not is_tcp(net):
        yield "rdma", "NCCL_NET", {}
    if not expect_rdma and off and net is None and env.get("NCCL_NET_PLUGIN", "") != "none":
        yield "plugin", "NCCL_IB_DISABLE", {}
    if net and net.lower() == "socket" and "NCCL_IB_HCA" in env:
        yield "noop/hca", "NCCL_IB_HCA", {}
    gid = read_integer(env.get("NCCL_IB_GID_INDEX", ""))
    if gid is not None and gid >= 0:
        yield "gid_index", "NCCL_IB_GID_INDEX", {}


def _devices(
    env: Mapping[str, str],
    key: str,
    present: Sequence[str],
    other: Sequence[str],
    foreign: re.Pattern[str],
    words: tuple[str, str],
) -> _Said:
    """Check a device list in NCCL's syntax: ``[^][=]name[:port],…``; a bare name is a prefix, ``=`` is exact."""
    if (value := env.get(key)) is None:
        return
    negated = value.startswith("^")
    exact = value.startswith("=", negated)
    names = tuple(part.split(":")[0] for part in value[negated + exact :].split(",") if part)
    if not names:
        yield "empty/list", key, {}
        return
    (kind, then), have = words, ", ".join(present)
    if any(name != name.strip() for name in names):
        yield "blank", key, {}
    strange = [n for n in names if n not in present and (n in other or (not present and foreign.match(n)))]
    if strange:
        yield (
            "wrong_kind",
            key,
            {"names": ", ".join(strange), "kind": kind, "instead": f"{kind}: {have}" if have else kind},
        )
    chosen = [d for d in present if (d in names if exact else d.startswith(names)) != negated]
    if present and not chosen and not strange:
        yield "no_match", key, {"then": then, "present": have}
    whole = tuple(name for name in names if name in present and not exact)
    # The full name of another device is a prefix of their names.
    if surprises := [d for d in present if d not in names and d.startswith(whole)]:
        yield "prefix", key, {"devices": ", ".join(surprises)}
    if chosen and key == "NCCL_IB_HCA" and len(chosen) < len(present):
        yield "unused", key, {"left": ", ".join(d for d in present if d not in chosen)}


def _others(env: Mapping[str, str], netdevs: Sequence[str]) -> _Said:
    if "CUDA_LAUNCH_BLOCKING" in env:
        yield "presence", "CUDA_LAUNCH_BLOCKING", {}
    value = env.get("GLOO_SOCKET_IFNAME", "")
    if value.startswith(("^", "=")):
        yield "gloo", "GLOO_SOCKET_IFNAME", {}
    elif missing := [name for name in value.split(",") if name and netdevs and name not in netdevs]:
        yield "gloo_missing", "GLOO_SOCKET_IFNAME", {"names": ", ".join(missing), "present": ", ".join(netdevs)}
    both = ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
    if all(read_integer(env.get(key, "")) for key in both):
        yield "inline", both[0], {}
