# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Causes of NCCL failures by the log lines that show them, with remedies. Private to the collection.

Sources: NVIDIA/nccl 2.17.1 … 2.30.7 and its network plugins; docs/transport.md says where each text was seen.
"""

from __future__ import annotations

from .model import Cause

_RDMA_ACCESS = (
    "Give the pod the device nodes: gb10_rdma_mode=privileged, or an RDMA device plugin with IPC_LOCK; then check the "
    "port state (rdma link) and that ibverbs-providers is in the image"
)
_GID = (
    "Give every VF an IPv4 address; unset NCCL_IB_GID_INDEX; compare /sys/class/infiniband/*/ports/1/gids at both ends"
)
_PEER = (
    "Look at the first failing rank and at the fabric: link, MTU at both ends, addresses, firewall between the nodes"
)
_MEMLOCK = "run privileged or with IPC_LOCK, or set LimitMEMLOCK=infinity for the container runtime"
_QP = r"ibv_modify_qp failed with (?:error )?"

# An interface name in place of an RDMA device name. Right names select nothing either if the devices are missing, which
# no_rdma_device says.
NETDEV_AS_HCA = r"NCCL_IB_HCA set (?:to|by environment to) ?[=^]*(?:en|eth|net|wl|bond|ib\d)"

CATALOGUE: tuple[Cause, ...] = (
    Cause(
        "net_forced_missing",
        "init",
        r"Failed to initialize any NET plugin|Error: network \S+ not found",
        "NCCL_NET names a network that is not available here, and NCCL gave up instead of falling back",
        _RDMA_ACCESS,
    ),
    Cause(
        "no_socket_interface",
        "init",
        r"[Nn]o socket interface found|No usable listening interface found",
        "no interface matches NCCL_SOCKET_IFNAME, or the pod lacks its fabric network",
        "Check the pod's network annotation and that the NetworkAttachmentDefinition is in the pod's namespace",
    ),
    Cause(
        "net_mismatch",
        "init",
        r"Detected mixed local Net device counts across ranks",
        "ranks see different numbers of HCAs",
        "Give every pod the same VFs and device nodes",
    ),
    Cause(
        "qp_no_cable",
        "fatal",
        # Two IPv4 GIDs whose first three numbers differ.
        _QP + r"(?:110|Connection timed out).*local GID ::ffff:(\d+\.\d+\.\d+)\.\d+, remote GID ::ffff:(?!\1\.)\d",
        "these two nodes have no cable between them: NCCL connects a device to one of another subnet, as it does in a "
        "ring of nodes without a switch",
        "In a ring set NCCL_ALGO=Ring and NCCL_IB_SUBNET_AWARE_ROUTING=1 (NCCL 2.30.7); otherwise give both ends of a "
        "rail addresses of one subnet",
    ),
    Cause(
        "qp_unreachable",
        "fatal",
        _QP + r"(?:101|110|113|Network is unreachable|Connection timed out|No route)",
        "the peer's GID cannot be reached: a VF without an IPv4 address leaves only a link-local GID",
        _GID,
    ),
    Cause(
        "qp_gid_index",
        "fatal",
        _QP + r"(?:22|61|Invalid argument|No data available)",
        "the GID index is wrong on one end, or the GID behind it went away",
        _GID,
    ),
    Cause(
        "qp_netns",
        "fatal",
        _QP + r"(?:19|No such device)",
        "the GID belongs to an interface of another network namespace",
        "Move the RDMA device with its interface (rdma system set netns exclusive and the rdma CNI plugin)",
    ),
    Cause("qp_failed", "fatal", r"Call to ibv_modify_qp failed", "a queue pair could not be connected", _GID),
    Cause(
        "completion_retry",
        "fatal",
        r"Got completion.*(?:error 12,|status=12\b|\(12\)|IBV_WC_RETRY_EXC_ERR)",
        "the peer stopped answering: path, MTU or GID differ between the ends, or the peer died",
        _PEER,
    ),
    Cause(
        "completion_rnr",
        "fatal",
        r"Got completion.*(?:error 13,|status=13\b|\(13\)|IBV_WC_RNR_RETRY_EXC_ERR)",
        "the peer had no buffer posted in time",
        _PEER,
    ),
    Cause(
        "completion_flushed",
        "fatal",
        r"Got completion.*(?:error 5,|status=5\b|\(5\)|IBV_WC_WR_FLUSH_ERR)",
        "work was flushed after an earlier error",
        "Look for the first error, on any rank",
        0.3,
    ),
    Cause("completion_error", "fatal", r"Got completion (?:from|with)", "a work request failed on the wire", _PEER),
    Cause(
        "async_fatal",
        "fatal",
        r"async fatal event|Got async event : (?:device|port) fatal|port error",
        "the HCA reported a fatal event",
        "Look at dmesg and the cable",
    ),
    Cause(
        "gid_changed",
        "fatal",
        r"GID table changed|GID_CHANGE",
        "the GID table changed while NCCL was running (link bounce or address change)",
        _GID,
        0.6,
    ),
    Cause(
        "wrong_peer_type",
        "fatal",
        r"wrong type \d+ != \d+",
        "two ranks speak different protocols on one port: one took IB, the other TCP, or two jobs share a port",
        "Make all ranks see the same devices and the same NCCL_* environment",
        # Below the reasons why one rank took TCP (no_rdma_device has 0.7), if its log has one.
        confidence=0.6,
    ),
    Cause(
        "reg_mr",
        "fatal",
        r"Call to ibv_(?:reg_\w+|create_qp|create_cq|alloc_pd)\w* failed",
        "the HCA could not pin memory or make a queue: the kernel refuses long pins (on a Spark the kexec handover, "
        "kho), or locked memory is limited",
        "On the host: grep Cma /proc/meminfo. If CmaFree is above zero and CmaTotal is 0, add the kernel argument "
        "kho=off (package nvidia-spark-grub-kho) and reboot. Otherwise " + _MEMLOCK,
    ),
    Cause(
        "verbs_not_loaded",
        "fatal",
        r"ibvwrap\.\w+:\d+ .*wrapper not initialized",
        "NCCL or a plugin calls a verbs function that the libibverbs of the image does not have",
        "Install the rdma-core and ibverbs-providers that belong together in the image, or remove the plugin",
    ),
    Cause(
        "net_not_in_topology",
        "fatal",
        r"Could not find NET with id",
        "the PCI path of the NIC is unknown in this sandbox",
        "Set NCCL_NET_GDR_LEVEL=LOC or give a topology file",
    ),
    Cause("verbs_call", "fatal", r"NCCL WARN Call to ibv_\w+ failed", "a verbs call failed", _RDMA_ACCESS, 0.6),
    Cause(
        "ofi_no_provider",
        "fallback",
        r"NET/OFI (?:No eligible providers|Could not find any optimal provider|"
        r"Failed to initialize|Initializing plugin failed|aws-ofi-nccl initialization failed|"
        r"Unable to find a protocol)|NET/OFI .*[Cc]ould not find .*provider|fi_getinfo.*(?:efa output empty|No data)",
        "the OFI plugin found no provider (EFA device missing in the pod)",
        "Request vpc.amazonaws.com/efa, and check the libfabric of the image",
    ),
    Cause(
        "ib_disabled",
        "fallback",
        r"NCCL_IB(?:EXT)?_DISABLE set by environment to [1-9]",
        "NCCL_IB_DISABLE disables the IB/RoCE transport",
        "Unset it; look in /etc/nccl.conf and the image too",
        0.95,
    ),
    Cause(
        "net_forced_socket",
        "fallback",
        r"NCCL_NET set by environment to [Ss]ocket|netName reset to NCCL_NET=[Ss]ocket",
        "NCCL_NET forces TCP",
        "Unset NCCL_NET, or set it to IB",
        0.95,
    ),
    Cause(
        "hca_selection",
        "fallback",
        NETDEV_AS_HCA,
        "NCCL_IB_HCA names network interfaces, so it selects no RDMA device",
        "Use RDMA device names (rdma link), not interface names",
        0.9,
    ),
    Cause(
        "no_libibverbs",
        "fallback",
        r"(?:Failed|Could not|Count not|Unable) (?:to )?open (?:libibverbs|\S*libibverbs)",
        "libibverbs is missing in the image",
        "Install rdma-core and ibverbs-providers in the image",
        0.9,
    ),
    Cause(
        "verbs_provider",
        "fallback",
        r"erdma.*[Cc]ould not open|[Cc]ould not open \S*erdma",
        "the verbs library of the image cannot open the eRDMA device: its provider is missing or has another version",
        "Install the eRDMA provider of the vendor in the image, in the version of the host's driver",
        0.85,
    ),
    Cause(
        "device_open",
        "fallback",
        r"NET/IB ?: (?:Unable to|Could not) open device",
        "the device node of an HCA cannot be opened (device cgroup)",
        "Request every HCA, or run privileged",
        0.9,
    ),
    Cause(
        "no_rdma_device",
        "fallback",
        r"NET/IB ?: No (?:IB )?device found|NET/\w*IB\w* ?: No device found",
        "NCCL sees no usable RDMA device: no /dev/infiniband in the pod, no provider library, or no active port",
        _RDMA_ACCESS,
        0.7,
    ),
    Cause(
        "plugin_failed",
        "fallback",
        r"Failed to initialize NET plugin (?!IB\b)\S+",
        "an external network plugin is loaded and unusable",
        "Remove the plugin, or give it its devices",
        0.5,
    ),
    # Without NCCL_NET_PLUGIN, NCCL looks for libnccl-net.so, and a missing file is harmless.
    Cause(
        "plugin_missing",
        "fallback",
        r"NET/Plugin ?: (?:Could not find: ?|No plugin found \()(?!libnccl-net\.so)[^\s).]",
        "the network plugin that NCCL_NET_PLUGIN names is not in the image, so NCCL used its built-in transports",
        "Unset NCCL_NET_PLUGIN, or install the plugin where the dynamic loader looks",
        0.6,
    ),
    Cause(
        "link_local_gid",
        "note",
        r"GID \d+ \((?:0x)?80FE/",
        "a device uses its link-local GID because it has no IPv4 address",
        _GID,
        0.85,
    ),
    Cause(
        "soft_rdma",
        "note",
        r"NET/IB ?: Using.* \[\d+\](?:rxe|siw)\w*:",
        "soft-RoCE or soft-iWARP: the CPU speaks the RDMA protocol over an ordinary interface",
        "Fine for a test; use the HCA (rocep…) to serve",
    ),
    Cause(
        "inline_and_prepost",
        "note",
        r"NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS set by environment to [1-9]",
        "NCCL_IB_USE_INLINE and NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS are both on: SGLang's warm-up hangs on a GB10",
        "Unset one of them; look in /etc/nccl.conf too",
        0.6,
    ),
    # It counts only together with the one before.
    Cause(
        "use_inline",
        "note",
        r"NCCL_IB_USE_INLINE set by environment to [1-9]",
        "NCCL sends small messages inline",
        "None needed",
    ),
    Cause(
        "rail_mismatch",
        "note",
        r"mismatched physical devices between local",
        "the ends use different rails",
        "Cable and address the rails in the same order on every node",
        0.5,
    ),
    Cause(
        "mtu_differs",
        "note",
        "",
        "the ends of connections have different MTUs: large messages then hang or run out of retries",
        "Set one MTU (9000) on interfaces, VFs and switch",
        0.5,
    ),
    Cause(
        "no_gdr_module",
        "note",
        r"GPU Direct RDMA Disabled .*\(no module\)",
        "GPUDirect RDMA is off because a kernel module is missing; slower, but RDMA is used (normal on a GB10)",
        "On discrete GPUs load nvidia-peermem or use DMA-BUF",
    ),
    Cause(
        "dev_override",
        "note",
        r"Subnet-aware routing: overriding dev",
        "the device number of a channel line is not the device used",
        "None needed",
    ),
    Cause(
        "cuda_failure",
        "failure",
        r"Cuda failure|Failed to CUDA|no CUDA-capable|unhandled cuda error",
        "CUDA failed; the network is not the cause",
        "Look at the GPU and driver first",
    ),
    Cause(
        "gloo_interface",
        "failure",
        r"Unable to find address for: ",
        "GLOO_SOCKET_IFNAME names an interface that does not exist here",
        "Name an interface of the pod (ip link), without = and ^",
        0.8,
    ),
    Cause(
        "rank_missing",
        "failure",
        r"DistStoreError|\d+/\d+ clients joined",
        "another rank never came to the rendezvous",
        "Read the log of the rank that is missing: it has the cause",
        0.4,
    ),
    # After a line of the watchdog, the crash is how it ends the process.
    Cause(
        "segfault",
        "failure",
        r"Segfault encountered|Fatal Python error: Segmentation fault",
        "the process crashed",
        "Read the lines before it, and the kernel's log (dmesg)",
        0.3,
    ),
    Cause(
        "watchdog",
        "failure",
        r"Watchdog caught collective operation timeout",
        "a collective did not end in time: a rank hangs, died, or waits for another one",
        "Look at the first rank that stopped; raise --dist-timeout only when it was busy loading or compiling",
        0.4,
    ),
    Cause(
        "ofi_reg_mr",
        "failure",
        r"NET/OFI (?>.*?(?:[Mm]emory registration|fi_mr_reg|[Rr]egister memory|regMr)).*(?:fail|[Ee]rror|RC:)|"
        r"NET/OFI (?:Unable|Failed) to register memory",
        "libfabric refused to register memory: locked memory or registration slots are used up",
        "R" + _MEMLOCK[1:],
        0.6,
    ),
    Cause(
        "duplicate_gpu", "failure", r"Duplicate GPU detected", "two ranks use one GPU", "Give every rank its own GPU"
    ),
    Cause(
        "socket_bad_address",
        "failure",
        r"(?:Call to \w+|socket\w*|ncclSocket\w*).*(?:[Ff]ailed|[Ee]rror).*Bad address",
        "a socket got memory that the CPU cannot reach (EFAULT): a plugin gave GPU memory to TCP, or it was freed",
        "Use RDMA (NCCL_NET=IB), or remove the network plugin",
        0.6,
    ),
    Cause(
        "peer_gone",
        "failure",
        r"Connection closed by remote peer|Call to (?:recv|send|connect|poll)\w* .*failed|"
        r"Connect to .* failed|ncclSocketInit: connecting to address|socket\w+: .*(?:refused|timed out|reset)|"
        r"Net : .* failed|ran out of retries",
        "a TCP connection of NCCL's control path broke or could not be made",
        _PEER,
        0.6,
    ),
    Cause(
        "proxy_failed",
        "failure",
        r"\[Service thread\] Error encountered|\[Proxy Service \d+\] Failed to execute|"
        r"Failed to execute operation \w+ from rank",
        "NCCL's proxy could not set up a connection",
        _PEER,
        0.4,
    ),
    Cause(
        "bootstrap",
        "failure",
        r"[Bb]ootstrap\w* ?:? .*(?:failed|mismatch|error)|bootstrap.cc:\d+ NCCL WARN",
        "ranks did not find each other",
        "Check the rendezvous address and NCCL_SOCKET_IFNAME",
        0.4,
    ),
    Cause(
        "nccl_error",
        "failure",
        r"ncclSystemError|ncclInternalError|ncclInvalidUsage|ncclRemoteError|NCCL error in|"
        r"ncclUnhandledCudaError",
        "NCCL returned an error to the program",
        "Read the lines before it",
        0.2,
    ),
)

PINS = {
    "kernel": (
        "the kernel refuses long pins: its kexec handover (kho) keeps memory as CMA (CmaFree above zero, CmaTotal 0)",
        "Add the kernel argument kho=off (package nvidia-spark-grub-kho) and reboot the host",
    ),
    "memlock": ("locked memory is limited in the container", "R" + _MEMLOCK[1:]),
}
"""Summary and remedy of ``reg_mr`` where the facts of the host name its reason."""
EXPLAINED = {
    "nccl_error": ("init", "fatal", "failure"),
    "proxy_failed": ("init", "fatal"),
    "segfault": ("init", "fatal", "watchdog"),
    "no_rdma_device": ("ib_disabled", "hca_selection", "device_open", "no_libibverbs", "verbs_provider"),
}
"""{cause: identifiers or kinds of causes that explain it, so that it is not listed beside them}."""

BY_ID = {cause.id: cause for cause in CATALOGUE}
