# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NCCL_* variables that NCCL reads, with the releases that read them. Private to the collection.

Source: every NVIDIA/nccl tag 2.17.1 … 2.30.7 (NCCL_PARAM, ncclGetEnv, ncclGetLevel). A name is listed under the first
and the last tag that reads it. To extend the tables, search a newer tag; LAST is the newest tag that was searched.
"""

from __future__ import annotations

Version = tuple[int, int, int]
FIRST: Version = (2, 17, 1)
LAST: Version = (2, 30, 7)

# (first tag, last tag, names without NCCL_); NCCL reads these with strtoll, which turns text without a number into 0
_INTEGERS: tuple[tuple[Version, Version, str], ...] = (
    (
        (2, 17, 1),
        (2, 19, 4),
        "AGG_CHANNEL_SIZE",
    ),
    (
        (2, 17, 1),
        (2, 21, 5),
        "WORK_FIFO_DEPTH",
    ),
    (
        (2, 17, 1),
        (2, 30, 7),
        "ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECK_POINTERS CHUNK_SIZE COLLNET_NODE_THRESHOLD "
        "COMM_BLOCKING CREATE_THREAD_CONTEXT CROSS_NIC DMABUF_ENABLE GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE "
        "GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GDR_FLUSH_DISABLE GRAPH_DUMP_FILE_RANK GRAPH_HELPER_DISABLE "
        "GRAPH_MIXING_SUPPORT GRAPH_REGISTER GROUP_CUDA_STREAM IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_DISABLE "
        "IB_GID_INDEX IB_PCI_RELAXED_ORDERING IB_PKEY IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_SL IB_TC "
        "IB_TIMEOUT IB_USE_INLINE IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P L1_SHARED_MEMORY_CARVEOUT "
        "LL128_BUFFSIZE LL128_NTHREADS LL_BUFFSIZE MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS "
        "MEM_SYNC_DOMAIN MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS NCHANNELS_PER_NET_PEER "
        "NET_DISABLE_INTRA NET_FORCE_FLUSH NET_GDR_READ NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD "
        "NTHREADS NVB_DISABLE NVB_PRECONNECT NVLS_ENABLE NVLS_NCHANNELS P2P_DIRECT_DISABLE P2P_DISABLE "
        "P2P_LL_THRESHOLD "
        "P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL P2P_READ_ENABLE "
        "P2P_USE_CUDA_MEMCPY PROGRESS_APPENDOP_FREQ PROXY_APPEND_BATCH_SIZE PROXY_DUMP_SIGNAL PXN_DISABLE "
        "SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY "
        "SOCKET_NTHREADS TOPO_DUMP_FILE_RANK",
    ),
    (
        (2, 18, 1),
        (2, 30, 7),
        "COMM_SPLIT_SHARE_RESOURCES CUMEM_ENABLE IB_MERGE_VFS IB_SPLIT_DATA_ON_QPS NET_OVERHEAD",
    ),
    (
        (2, 19, 1),
        (2, 30, 7),
        "LOCAL_REGISTER",
    ),
    (
        (2, 19, 4),
        (2, 30, 7),
        "CONNECT_ROUND_MAX_PEERS REPORT_CONNECT_PROGRESS WARN_ENABLE_DEBUG_INFO",
    ),
    (
        (2, 20, 3),
        (2, 20, 5),
        "MNNVL",
    ),
    (
        (2, 20, 3),
        (2, 30, 7),
        "IB_MERGE_NICS NVLSTREE_MAX_CHUNKSIZE",
    ),
    (
        (2, 21, 5),
        (2, 30, 7),
        "IB_ROCE_VERSION_NUM MNNVL_ENABLE NVLS_CHUNKSIZE",
    ),
    (
        (2, 22, 3),
        (2, 30, 7),
        "IB_FIFO_TC IB_ROUTABLE_FLID_GID_INDEX RUNTIME_CONNECT UNPACK_DOUBLE_NCHANNELS WORK_ARGS_BYTES WORK_FIFO_BYTES",
    ),
    (
        (2, 23, 4),
        (2, 30, 7),
        "CUMEM_HOST_ENABLE IB_ECE_ENABLE IB_RETURN_ASYNC_EVENTS MNNVL_CLIQUE_ID OOB_NET_ENABLE PAT_ENABLE "
        "UID_STAGGER_RATE UID_STAGGER_THRESHOLD",
    ),
    (
        (2, 24, 3),
        (2, 30, 7),
        "IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_WARN_RAIL_LOCAL LEGACY_CUDA_REGISTER "
        "NET_OPTIONAL_RECV_COMPLETION RAS_ENABLE RAS_TIMEOUT_FACTOR SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC",
    ),
    (
        (2, 25, 1),
        (2, 30, 7),
        "MNNVL_UUID",
    ),
    (
        (2, 26, 2),
        (2, 30, 7),
        "LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL NET_GDR_C2C NET_PLUGIN_REF_COUNT",
    ),
    (
        (2, 27, 3),
        (2, 30, 7),
        "COLLNET_ENABLE COMM_SHRINK_SHARE_RESOURCES IB_DATA_DIRECT LL128_C2C NVLINK_UTIL_CENTRIC_SCHED_ENABLE "
        "PXN_C2C SOCKET_INLINE SOCKET_MIN_TASKSIZE SOCKET_RCVBUF SOCKET_SNDBUF SYM_CTAS WIN_ENABLE WIN_STRIDE",
    ),
    (
        (2, 27, 5),
        (2, 30, 7),
        "MNNVL_SCATTER_NETS_ENABLE",
    ),
    (
        (2, 28, 3),
        (2, 30, 7),
        "NVTX_DISABLE SET_CPU_STACK_SIZE SINGLE_PROC_MEM_REG_ENABLE",
    ),
    (
        (2, 28, 7),
        (2, 29, 7),
        "GIN_COUNTER_POOL_SIZE GIN_NCONTEXTS GIN_SIGNAL_POOL_SIZE",
    ),
    (
        (2, 28, 7),
        (2, 30, 7),
        "GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_PROXY_QUEUE_SIZE "
        "GIN_TYPE MNNVL_RAIL_PER_HOST P2P_SCHEDULE_GROUP_SIZE",
    ),
    (
        (2, 29, 2),
        (2, 30, 7),
        "ALLGATHERV_ENABLE ENABLE_VERSION_CHECK IPC_USE_ABSTRACT_SOCKET MULTI_SEGMENT_REGISTER NUM_RMA_CTX "
        "P2P_EPOCH_ENABLE P2P_PER_CHANNEL_NET_BW RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE "
        "SOCKET_POLL_TIMEOUT_MSEC SYM_CE_THRESHOLD SYM_NOWIN_ENABLE",
    ),
    (
        (2, 29, 7),
        (2, 29, 7),
        "GIN_EXCLUSIVE_CONTEXTS",
    ),
    (
        (2, 29, 7),
        (2, 30, 7),
        "DISABLE_MEM_MANAGER GDAKI_USE_RELIABLE_DB GIN_NCONNECTIONS GIN_PLUGIN_REF_COUNT IB_DEVICE_PCI_ORDER "
        "IB_PREPOST_RECEIVE_WORK_REQUESTS IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER "
        "IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY LSA_TEAM_SIZE "
        "SYM_GIN_KERNELS_ENABLE",
    ),
    (
        (2, 30, 3),
        (2, 30, 7),
        "ELASTIC_BUFFER_REGISTER GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC IB_OOO_RQ "
        "IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE "
        "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX "
        "IB_RESILIENCY_PORT_RECOVERY_START_DELAY IGNORE_COLLNET_MISMATCH IGNORE_NET_MISMATCH "
        "MNNVL_CROSS_CLIQUE MULTI_RANK_GPU_ENABLE P2P_MAX_PEERS SYM_TMA_ENABLE",
    ),
    (
        (2, 30, 4),
        (2, 30, 7),
        "SYM_REUSE_SYSMEM_HANDLES",
    ),
    (
        (2, 30, 7),
        (2, 30, 7),
        "DEV_API_JIT GIN_IB_TC GRAPH_STREAM_ORDERING IB_QUERY_PORT_SPEED IB_SUBNET_AWARE_ROUTING "
        "IB_SUBNET_PREFIX_LEN MLOPART_RDMA_ENABLE NET_GDR_MLOPART RMA_DISABLE RMA_PLUGIN_REF_COUNT "
        "SHADOW_MEMPOOL_MAX_SIZE SYM_RS_GIN_CHUNK_SIZE TOPO_SPLIT_MLOPART",
    ),
)

# (first tag, last tag, names without NCCL_) of names, lists, paths and addresses
_STRINGS: tuple[tuple[Version, Version, str], ...] = (
    (
        (2, 17, 1),
        (2, 20, 5),
        "CUDA_PATH",
    ),
    (
        (2, 17, 1),
        (2, 22, 3),
        "PROXY_PROFILE",
    ),
    (
        (2, 17, 1),
        (2, 30, 7),
        "ALGO COMM_ID DEBUG DEBUG_FILE DEBUG_SUBSYS GRAPH_DUMP_FILE GRAPH_FILE HOSTID IB_HCA LAUNCH_MODE NET "
        "NET_GDR_LEVEL NET_PLUGIN P2P_LEVEL PROTO SOCKET_FAMILY SOCKET_IFNAME THREAD_THRESHOLDS "
        "TOPO_DUMP_FILE TOPO_FILE",
    ),
    (
        (2, 19, 1),
        (2, 30, 7),
        "TUNER_PLUGIN",
    ),
    (
        (2, 21, 5),
        (2, 30, 7),
        "IB_ADDR_FAMILY IB_ADDR_RANGE",
    ),
    (
        (2, 23, 4),
        (2, 30, 7),
        "CONF_FILE OOB_NET_IFNAME PROFILER_PLUGIN",
    ),
    (
        (2, 24, 3),
        (2, 30, 7),
        "NET_FORCE_MERGE NET_MERGE_LEVEL RAS_ADDR",
    ),
    (
        (2, 26, 2),
        (2, 30, 7),
        "DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS",
    ),
    (
        (2, 27, 3),
        (2, 30, 7),
        "CTA_POLICY SYM_KERNEL",
    ),
    (
        (2, 28, 3),
        (2, 30, 7),
        "NETDEVS_POLICY PROXY_CPUSET",
    ),
    (
        (2, 28, 7),
        (2, 30, 7),
        "ENV_PLUGIN",
    ),
    (
        (2, 29, 7),
        (2, 30, 7),
        "CHECK_MODE GIN_PLUGIN NO_CACHE",
    ),
    (
        (2, 30, 3),
        (2, 30, 7),
        "IBVERBS_LIB",
    ),
    (
        (2, 30, 7),
        (2, 30, 7),
        "NET_MERGE_POLICY RMA_PLUGIN SOCKET_MAGIC",
    ),
)

# Plugins, wrappers and tools read these variables, not NCCL. Their values are not checked.
FOREIGN_PREFIXES = (
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_GPUVIZ_",
    "NCCL_IBEXT_",
    "NCCL_INSPECTOR_",
    "NCCL_OFI_",
    "NCCL_PARAM_",
    "NCCL_PLUGIN_",
    "NCCL_PROFILE",
    "NCCL_SHARP_",
    "NCCL_SPCX_",
    "NCCL_TESTS_",
    "NCCL_TUNER_",
    "NCCL_UCX_",
)


def _ranges(table: tuple[tuple[Version, Version, str], ...]) -> dict[str, tuple[Version, Version]]:
    return {f"NCCL_{name}": (first, last) for first, last, names in table for name in names.split()}


INTEGERS = _ranges(_INTEGERS)
KNOWN = INTEGERS | _ranges(_STRINGS)
