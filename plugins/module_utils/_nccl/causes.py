# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Causes of NCCL failures by the log lines that show them, with remedies. Private to the collection.

A cause names the file of NCCL (below src/, 2.17.1 to 2.30.7) or of another project that prints its line. The most
telling cause comes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

# init: NCCL found no network and gave up · fatal: the transport broke · failure: NCCL stopped for another reason
# fallback: the reason why RDMA was not chosen · note: useful information that explains no failure by itself
_WEIGHT = {"init": 0.95, "fatal": 0.9, "failure": 0.5, "fallback": 0.8, "note": 0.2}


class Cause(NamedTuple):
    """One entry of the table: its kind and how much it explains (0 to 1), what prints its line and the line's pattern,
    what it means and what to do.
    """

    id: str
    kind: str
    confidence: float
    source: str
    pattern: str
    summary: str
    remedy: str


_MEMLOCK = "run privileged or with IPC_LOCK, or set LimitMEMLOCK=infinity for the container runtime"
# What is written instead of each name in the table.
_TEXTS = {
    "@ACCESS": "Give the pod the device nodes: gb10_rdma_mode=privileged, or an RDMA device plugin with IPC_LOCK; then "
    "check the port state (rdma link) and that ibverbs-providers is in the image",
    "@GID": "Give every VF an IPv4 address; unset NCCL_IB_GID_INDEX; compare /sys/class/infiniband/*/ports/1/gids at "
    "both ends",
    "@PEER": "Look at the first failing rank and at the fabric: link, MTU at both ends, addresses, firewall between "
    "the nodes",
    "@memlock": _MEMLOCK,
    "@Memlock": "R" + _MEMLOCK[1:],
    "@QP": r"ibv_modify_qp failed with (?:error )?",
}
# Identifier (kind, confidence if it is not that of the kind, source): summary; then the pattern and the remedy. A line
# that is indented more continues the one before it.
# - qp_no_cable: two IPv4 GIDs whose first three numbers differ.
# - wrong_peer_type is below the reasons why one rank took TCP (no_rdma_device has 0.7), if its log has one.
# - hca_selection: an interface name in place of an RDMA device name. Right names select nothing either if the devices
#   are missing, which no_rdma_device says.
# - plugin_missing: without NCCL_NET_PLUGIN, NCCL looks for libnccl-net.so, and a missing file is harmless.
# - inline_and_prepost counts only together with use_inline.
# - segfault: after a line of the watchdog, the crash is how it ends the process.
_TABLE = r"""
net_forced_missing (init, plugin/net.cc; net.cc to 2.26): NCCL_NET names a network that is not available here, and
    NCCL gave up instead of falling back
  Failed to initialize any NET plugin|Error: network \S+ not found
  @ACCESS
no_socket_interface (init, bootstrap.cc): no interface matches NCCL_SOCKET_IFNAME, or the pod lacks its fabric network
  [Nn]o socket interface found|No usable listening interface found
  Check the pod's network annotation and that the NetworkAttachmentDefinition is in the pod's namespace
net_mismatch (init, init.cc): ranks see different numbers of HCAs
  Detected mixed local Net device counts across ranks
  Give every pod the same VFs and device nodes
qp_no_cable (fatal, misc/ibvwrap.cc): these two nodes have no cable between them: NCCL connects a device to one of
    another subnet, as it does in a ring of nodes without a switch
  @QP(?:110|Connection timed out).*local GID ::ffff:(\d+\.\d+\.\d+)\.\d+, remote GID ::ffff:(?!\1\.)\d
  In a ring set NCCL_ALGO=Ring and NCCL_IB_SUBNET_AWARE_ROUTING=1 (NCCL 2.30.7); otherwise give both ends of a rail
    addresses of one subnet
qp_unreachable (fatal, misc/ibvwrap.cc): the peer's GID cannot be reached: a VF without an IPv4 address leaves only a
    link-local GID
  @QP(?:101|110|113|Network is unreachable|Connection timed out|No route)
  @GID
qp_gid_index (fatal, misc/ibvwrap.cc): the GID index is wrong on one end, or the GID behind it went away
  @QP(?:22|61|Invalid argument|No data available)
  @GID
qp_netns (fatal, misc/ibvwrap.cc): the GID belongs to an interface of another network namespace
  @QP(?:19|No such device)
  Name only devices whose interface is in the pod (rdma link) in NCCL_IB_HCA
qp_failed (fatal, misc/ibvwrap.cc): a queue pair could not be connected
  Call to ibv_modify_qp failed
  @GID
completion_retry (fatal, transport/net_ib/p2p.cc): the peer stopped answering: path, MTU or GID differ between the
    ends, or the peer died
  Got completion.*(?:error 12,|status=12\b|\(12\)|IBV_WC_RETRY_EXC_ERR)
  @PEER
completion_rnr (fatal, transport/net_ib/p2p.cc): the peer had no buffer posted in time
  Got completion.*(?:error 13,|status=13\b|\(13\)|IBV_WC_RNR_RETRY_EXC_ERR)
  @PEER
completion_flushed (fatal 0.3, transport/net_ib/p2p.cc): work was flushed after an earlier error
  Got completion.*(?:error 5,|status=5\b|\(5\)|IBV_WC_WR_FLUSH_ERR)
  Look for the first error, on any rank
completion_error (fatal, transport/net_ib/p2p.cc): a work request failed on the wire
  Got completion (?:from|with)
  @PEER
async_fatal (fatal, transport/net_ib/common.cc; before 2.27 transport/net_ib.cc with texts of rdma-core's
    enum_strs.c): the HCA reported a fatal event
  async fatal event|[Gg]ot async (?:error )?event ?: (?:.*catastrophic error|port error|CQ error)
  Look at dmesg and the cable
gid_changed (fatal 0.6, transport/net_ib/common.cc; rdma-core enum_strs.c): the GID table changed while NCCL was
    running (link bounce or address change)
  GID table changed|event ?: GID table change
  @GID
wrong_peer_type (fatal 0.6, misc/socket.cc): two ranks speak different protocols on one port: one took IB, the other
    TCP, or two jobs share a port
  wrong type \d+ != \d+
  Make all ranks see the same devices and the same NCCL_* environment
reg_mr (fatal, misc/ibvwrap.cc): the HCA could not pin memory or make a queue: the kernel refuses long pins (on a
    Spark the kexec handover, kho), or locked memory is limited
  Call to ibv_(?:reg_\w+|create_qp|create_cq|alloc_pd)\w* failed
  On the host: grep Cma /proc/meminfo. If CmaFree is above zero and CmaTotal is 0, add the kernel argument kho=off
    (package nvidia-spark-grub-kho) and reboot. Otherwise @memlock
verbs_not_loaded (fatal, misc/ibvwrap.cc): NCCL or a plugin calls a verbs function that the libibverbs of the image
    does not have
  ibvwrap\.\w+:\d+ .*wrapper not initialized
  Install the rdma-core and ibverbs-providers that belong together in the image, or remove the plugin
net_not_in_topology (fatal, graph/topo.h): the PCI path of the NIC is unknown in this sandbox
  Could not find NET with id
  Set NCCL_NET_GDR_LEVEL=LOC or give a topology file
verbs_call (fatal 0.6, misc/ibvwrap.cc): a verbs call failed
  NCCL WARN Call to ibv_\w+ failed
  @ACCESS
ofi_no_provider (fallback, aws-ofi-nccl): the OFI plugin found no provider (EFA device missing in the pod)
  NET/OFI (?:No eligible providers|Could not find any optimal provider|Failed to initialize|
    Initializing plugin failed|aws-ofi-nccl initialization failed|Unable to find a protocol)|
    NET/OFI .*[Cc]ould not find .*provider|fi_getinfo.*(?:efa output empty|No data)
  Request vpc.amazonaws.com/efa, and check the libfabric of the image
ib_disabled (fallback 0.95, misc/param.cc): NCCL_IB_DISABLE disables the IB/RoCE transport
  NCCL_IB(?:EXT)?_DISABLE set by environment to [1-9]
  Unset it; look in /etc/nccl.conf and the image too
net_forced_socket (fallback 0.95, misc/param.cc; init.cc): NCCL_NET forces TCP
  NCCL_NET set by environment to [Ss]ocket|netName reset to NCCL_NET=[Ss]ocket
  Unset NCCL_NET, or set it to IB
hca_selection (fallback 0.9, transport/net_ib/init.cc; misc/param.cc): NCCL_IB_HCA names network interfaces, so it
    selects no RDMA device
  NCCL_IB_HCA set (?:to|by environment to) ?[=^]*(?:en|eth|net|wl|bond|ib\d)
  Use RDMA device names (rdma link), not interface names
no_libibverbs (fallback 0.9, misc/ibvsymbols.cc): libibverbs is missing in the image
  (?:Failed|Could not|Count not|Unable) (?:to )?open (?:libibverbs|\S*libibverbs)
  Install rdma-core and ibverbs-providers in the image
verbs_provider (fallback 0.85, public logs of rdma-core with eRDMA): the verbs library of the image cannot open the
    eRDMA device: its provider is missing or has another version
  erdma.*[Cc]ould not open|[Cc]ould not open \S*erdma
  Install the eRDMA provider of the vendor in the image, in the version of the host's driver
device_open (fallback 0.9, transport/net_ib/init.cc): the device node of an HCA cannot be opened (device cgroup)
  NET/IB ?: (?:Unable to|Could not) open device
  Request every HCA, or run privileged
no_rdma_device (fallback 0.7, transport/net_ib/init.cc; nccl-rdma-sharp-plugins): NCCL sees no usable RDMA device: no
    /dev/infiniband in the pod, no provider library, or no active port
  NET/IB ?: No (?:IB )?device found|NET/\w*IB\w* ?: No device found
  @ACCESS
plugin_failed (fallback 0.5, plugin/net.cc): an external network plugin is loaded and unusable
  Failed to initialize NET plugin (?!IB\b)\S+
  Remove the plugin, or give it its devices
plugin_missing (fallback 0.6, plugin/plugin_open.cc; net.cc to 2.25): the network plugin that NCCL_NET_PLUGIN names is
    not in the image, so NCCL used its built-in transports
  NET/Plugin ?: (?:Could not find: ?|No plugin found \()(?!libnccl-net\.so)[^\s).]
  Unset NCCL_NET_PLUGIN, or install the plugin where the dynamic loader looks
link_local_gid (note 0.85, transport/net_ib/connect.cc; before 2.27 transport/net_ib.cc): a device uses its link-local
    GID because it has no IPv4 address
  GID \d+ \((?:0x)?80FE/
  @GID
soft_rdma (note, transport/net_ib/init.cc): soft-RoCE or soft-iWARP: the CPU speaks the RDMA protocol over an ordinary
    interface
  NET/IB ?: Using.* \[\d+\](?:rxe|siw)\w*:
  Fine for a test; use the HCA (rocep…) to serve
inline_and_prepost (note 0.6, misc/param.cc): NCCL_IB_USE_INLINE and NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS are both
    on: SGLang's warm-up hangs on a GB10
  NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS set by environment to [1-9]
  Unset one of them; look in /etc/nccl.conf too
use_inline (note, misc/param.cc): NCCL sends small messages inline
  NCCL_IB_USE_INLINE set by environment to [1-9]
  None needed
rail_mismatch (note 0.5, transport/net_ib/connect.cc): the ends use different rails
  mismatched physical devices between local
  Cable and address the rails in the same order on every node
mtu_differs (note 0.5, transport/net_ib/connect.cc): the ends of connections have different MTUs: large messages then
    hang or run out of retries
  -
  Set one MTU (9000) on interfaces, VFs and switch
no_gdr_module (note, graph/paths.cc; graph/topo.cc): GPUDirect RDMA is off because a kernel module is missing; slower,
    but RDMA is used (normal on a GB10)
  GPU Direct RDMA Disabled .*\(no module\)
  On discrete GPUs load nvidia-peermem or use DMA-BUF
dev_override (note, transport/net_ib/connect.cc): the device number of a channel line is not the device used
  Subnet-aware routing: overriding dev
  None needed
cuda_failure (failure, include/checks.h, include/alloc.h, init.cc; CUDA): CUDA failed; the network is not the cause
  Cuda failure|Failed to CUDA|no CUDA-capable|unhandled cuda error
  Look at the GPU and driver first
gloo_interface (failure 0.8, Gloo, transport/tcp/device.cc): GLOO_SOCKET_IFNAME names an interface that does not exist
    here
  Unable to find address for:
  Name an interface of the pod (ip link), without = and ^
rank_missing (failure 0.4, PyTorch, TCPStore.cpp and socket.cpp): another rank never came to the rendezvous
  DistStoreError|\d+/\d+ clients joined|client socket has timed out
  Read the log of the rank that is missing: it has the cause
segfault (failure 0.3, Python's faulthandler; UCX and HPC-X; PyTorch's elastic agent): the process crashed
  Segfault encountered|Fatal Python error: Segmentation fault|ignal 11 \(S(?:IGSEGV|egmentation fault)
  Read the lines before it, and the kernel's log (dmesg)
watchdog (failure 0.4, PyTorch, ProcessGroupNCCL.cpp): a collective did not end in time: a rank hangs, died, or waits
    for another one
  Watchdog caught collective operation timeout
  Look at the first rank that stopped; raise --dist-timeout only when it was busy loading or compiling
ofi_reg_mr (failure 0.6, aws-ofi-nccl): libfabric refused to register memory: locked memory or registration slots are
    used up
  NET/OFI (?>.*?(?:[Mm]emory registration|fi_mr_reg|[Rr]egister memory|regMr)).*(?:fail|[Ee]rror|RC:)|
    NET/OFI (?:Unable|Failed) to register memory
  @Memlock
duplicate_gpu (failure, init.cc): two ranks use one GPU
  Duplicate GPU detected
  Give every rank its own GPU
socket_bad_address (failure 0.6, misc/socket.cc; os/linux.cc): a socket got memory that the CPU cannot reach (EFAULT):
    a plugin gave GPU memory to TCP, or it was freed
  (?:Call to \w+|socket\w*|ncclSocket\w*).*(?:[Ff]ailed|[Ee]rror).*Bad address
  Use RDMA (NCCL_NET=IB), or remove the network plugin
peer_gone (failure 0.6, misc/socket.cc; os/linux.cc; include/checks.h): a TCP connection of NCCL's control path broke
    or could not be made
  Connection closed by remote peer|Call to (?:recv|send|connect|poll)\w* .*failed|Connect to .* failed|
    ncclSocketInit: connecting to address|socket\w+: .*(?:refused|timed out|reset)|exceeded (?:error )?retr
  @PEER
proxy_failed (failure 0.4, proxy.cc): NCCL's proxy could not set up a connection
  \[Service thread\] Error encountered|\[Proxy Service \d+\] Failed to execute|Failed to execute operation \w+ from rank
  @PEER
bootstrap (failure 0.4, bootstrap.cc): ranks did not find each other
  [Bb]ootstrap\w* ?:? .*(?:failed|mismatch|error)|bootstrap.cc:\d+ NCCL WARN
  Check the rendezvous address and NCCL_SOCKET_IFNAME
nccl_error (failure 0.2, PyTorch, NCCLUtils.cpp; ncclGetErrorString): NCCL returned an error to the program
  ncclSystemError|ncclInternalError|ncclInvalidUsage|ncclRemoteError|NCCL error in|ncclUnhandledCudaError
  Read the lines before it
"""
_HEAD = re.compile(r"(\w+) \((\w+)(?: ([\d.]+))?, (.+?)\): (.+)")


def _causes(table: str) -> Iterator[Cause]:
    for name, text in _TEXTS.items():
        table = table.replace(name, text)
    for block in re.split(r"\n(?=\w)", table.strip()):
        # A line that is indented more continues the one before it, a pattern without a blank.
        head, pattern, remedy = re.sub(r"\n {4}", "\t", block).split("\n")
        for identity, kind, confidence, source, summary in _HEAD.findall(head.replace("\t", " ")):
            weight = float(confidence) if confidence else _WEIGHT[kind]
            line = pattern.strip().replace("\t", "").removeprefix("-")
            yield Cause(identity, kind, weight, source, line, summary, remedy.strip().replace("\t", " "))


CATALOGUE = tuple(_causes(_TABLE))
BY_ID = {cause.id: cause for cause in CATALOGUE}
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
# An escape, a class, the start of a group, a repetition count, or one character.
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]])+\]|\(\?[:!=>]|\{[^}]*\}|.")
_CMA = re.compile(r"^Cma(Total|Free): +(\d+)", re.M)


def literals(pattern: str) -> tuple[str, ...]:
    """Return the longest literal text of each alternative of a pattern; every matching line contains one of them.

    Groups and classes in an alternative are skipped. The tuple is empty if one alternative has no literal text.
    """
    alternatives, depth, runs = [], 0, [""]
    for token in _TOKEN.findall(f"{pattern}|"):
        depth += token.startswith("(") - (token == ")")
        plain = token[1] if len(token) == 2 and token[0] == "\\" and not token[1].isalnum() else token
        if token == "|" and not depth:
            alternatives.append(max(runs, key=len))
            runs = [""]
        elif token in "?*" or token.startswith("{"):
            # The preceding character is optional.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif depth or len(plain) > 1 or (plain == token and token in ".+^$)"):
            runs.append("")
        else:
            runs[-1] += plain
    return tuple(alternatives) if all(alternatives) else ()


@cache
def _hints() -> tuple[tuple[str, Cause], ...]:
    """Return literal texts, each with a cause whose pattern requires one of them, the most telling cause first."""
    named = (cause for cause in CATALOGUE if cause.pattern)
    return tuple((hint, cause) for cause in named for hint in literals(cause.pattern))


def find_cause(text: str) -> str:
    """Return the identifier of the first matching cause, or nothing; the most telling causes come first."""
    # A literal text is found ten times faster than a pattern, and most lines contain none of them. Most logs match no
    # pattern, and compiling all of them takes longer than reading such a log.
    for cause in [cause for hint, cause in _hints() if hint in text]:
        if re.search(cause.pattern, text):
            return cause.id
    return ""


def kernel_refuses_pins(meminfo: str) -> bool:
    """Tell from /proc/meminfo whether the kernel frees CMA that it does not count, and so refuses pins.

    CmaFree is then above CmaTotal, which is 0 (NV-Kernels#590).
    """
    values = dict(_CMA.findall(meminfo))
    return values.get("Total") == "0" and values.get("Free", "0") != "0"


# Tell which variables keep NCCL from writing what proves its transport.

VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_CONF_FILE", "NCCL_ENV_PLUGIN", "NCCL_HOSTID")
"""The variables that ``blinds`` knows; start_rank.py writes those that are set to a file that the sidecar reads."""

# Levels that include INFO, in any case of letters (ncclDebugLogLevel; NCCL compares with strcasecmp).
_LOUD = frozenset({"INFO", "ABORT", "TRACE"})
# INIT writes the beginning and the end of each communicator's setup, NET the devices, GIDs and MTUs.
_NEEDED = frozenset({"INIT", "NET"})


def blinds(name: str, value: str) -> str:
    """Return how a variable hides NCCL's transport, empty if it does not.

    ``silent``: the log level is too low. ``masked``: the lines belong to subsystems that are turned off.
    ``conf_file``: NCCL takes variables from a place that nobody checked. ``host_id``: NCCL does not see which ranks
    share a host. Source: debug.cc, param.cc and utils.cc of NCCL 2.17.1 to 2.32.3.
    """
    # NCCL before 2.30 takes blanks as part of a name, and an unknown level as none.
    if name == "NCCL_DEBUG":
        return "" if value.upper() in _LOUD else "silent"
    if name == "NCCL_DEBUG_SUBSYS":
        return "masked" if _NEEDED - _shown(value) else ""
    if name in ("NCCL_CONF_FILE", "NCCL_ENV_PLUGIN"):
        return "conf_file" if value else ""
    # Also if it is empty: then all hosts have the same identity.
    return "host_id" if name == "NCCL_HOSTID" else ""


def _shown(mask: str) -> frozenset[str]:
    """Return those of the needed subsystems whose lines every release of NCCL writes with this mask."""
    if mask.startswith("^"):
        # NCCL 2.30 and later take a name with blanks, earlier releases do not.
        hidden = {name.strip().upper() for name in mask[1:].split(",")}
        return frozenset() if "ALL" in hidden else _NEEDED - hidden
    names = {name.upper() for name in mask.split(",")}
    return _NEEDED if "ALL" in names else _NEEDED & names


def blinder(written: bytes) -> str:
    """Return the first variable that hides the transport, as ``NAME=value``; ``written`` is start_rank.py's file."""
    try:
        given = json.loads(written)
    except ValueError:
        return ""
    if not isinstance(given, Mapping):
        return ""
    values = {name: str(given[name]) for name in VARIABLES if name in given}
    return next((f"{name}={value}" for name, value in values.items() if blinds(name, value)), "")
