# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host that preflight reads."""

from __future__ import annotations

from typing import TypedDict


class Holder(TypedDict):
    """Memory outside Kubernetes; ``kind`` is ``docker`` (a container), ``unit`` (of systemd) or ``program``."""

    kind: str
    name: str
    kib: int


class KernelMessage(TypedDict):
    """How often the kernel has said something of one kind since boot, and its last line."""

    count: int
    last: str


class User(TypedDict):
    """The effective user, and the login name if sudo was used."""

    uid: int | None
    name: str
    sudo_from: str | None


class System(TypedDict):
    """The system by /etc/os-release; empty where the file does not say."""

    id: str
    version: str
    name: str


class Area(TypedDict):
    """A swap area; ``kind`` is ``file`` or ``partition``."""

    name: str
    kind: str
    kib: int


class Disk(TypedDict):
    """Size and free space of the file system of a path, and its number; None if the file system does not answer."""

    path: str
    device: int | None
    total_gib: float | None
    free_gib: float | None


class Written(TypedDict):
    """The file system of a directory that roles write to; None if it does not answer."""

    read_only: bool | None
    free_mib: int | None


class Kubernetes(TypedDict):
    """The installed K3s by unit (True: of this collection), and other distributions that left files."""

    units: dict[str, bool]
    version: str
    others: list[str]
    settings: dict[str, str]
    kubeconfig: bool


class Gpu(TypedDict):
    """One line of nvidia-smi. Clocks in MHz, load in percent, ``slowdown`` the bits of clocks_event_reasons.active."""

    name: str
    utilization: float | None
    clock_mhz: float | None
    max_clock_mhz: float | None
    power_limit_w: float | None
    default_power_limit_w: float | None
    slowdown: float | None


class Rdma(TypedDict):
    """RDMA devices, the number of device nodes that programs can open, and whether namespaces share devices."""

    devices: list[str]
    device_nodes: int
    shared_mode: bool | None


class Address(TypedDict):
    """An address with prefix; ``dynamic`` with a limited lifetime, such as one from a DHCP server."""

    address: str
    dynamic: bool


class Port(TypedDict):
    """A physical function and its link."""

    name: str
    pci_address: str
    total_vfs: int
    num_vfs: int
    rdma_device: str | None
    max_mtu: int | None
    driver: str | None
    driver_version: str | None
    firmware: str | None
    mtu: int | None
    carrier: bool
    speed_mbps: int | None
    port_state: str | None
    rate_gbps: float | None
    pcie_gts: float | None
    pcie_width: int | None
    pcie_max_gts: float | None
    pcie_max_width: int | None
    addresses: list[Address]
    master: str | None


class Listener(TypedDict):
    """A listening TCP port."""

    port: int
    process: str | None


class Link(TypedDict):
    """An interface in a network namespace that no process uses."""

    name: str
    alias: str
    mac: str


class Orphan(TypedDict):
    """A network namespace that no process uses."""

    namespace: str
    links: list[Link]


class NetplanFile(TypedDict):
    """A netplan file that is not of this collection, and the PFs that it names."""

    path: str
    interfaces: list[str]


class Netplan(TypedDict):
    """Netplan's error about its files (None: no error), and the files."""

    error: str | None
    files: list[NetplanFile]


class Firewall(TypedDict):
    """Whether ufw is active, and what it allows in its own notation."""

    active: bool
    allowed: list[str]


class Taken(TypedDict):
    """The most of a node's memory that was taken while a server loaded, in GiB, and when.

    ``key`` identifies the image and the command of rank 0. A load is ``ready``, or was ``ended`` in ``phase`` because
    memory ran out; otherwise the most was taken in ``phase``. ``before_gib`` was taken before the load, and ``peaks``
    has the most of each phase. ``graphs_gib`` is what SGLang says that its CUDA graphs took, ``compiler_gib`` the most
    memory of one compiler, ``compilers_gib`` of all at once, at most ``jobs`` (0: not told).
    """

    key: str
    state: str
    phase: str
    at: str
    total_gib: float
    before_gib: float
    taken_gib: float
    peaks: dict[str, float]
    graphs_gib: float
    compiler_gib: float
    compilers_gib: float
    jobs: int


class Facts(TypedDict):
    """The facts of a host. Sizes in KiB or GiB as named, rates in Gb/s. None: the host did not tell.

    ``images`` are those that Kubernetes has, ``staged`` the GiB of each directory of the models, ``loads`` what the
    last load of each group took, ``records`` the paths of the files of /etc/gb10 and of this collection's units.
    ``routes`` has the IPv4 networks behind each interface, also those of VPNs with routing tables of their own.

    The controller compares what a host sends with these types (plugin_utils/_node/host.py).
    """

    user: User
    os: System
    arch: str
    kernel: str | None
    boot_id: str | None
    command_line: str | None
    memory_kib: int | None
    cma_kib: int | None
    cma_free_kib: int | None
    swap: list[Area] | None
    memory_holders: list[Holder]
    kernel_log: dict[str, KernelMessage] | None
    cgroup_version: int | None
    time_synchronized: bool | None
    clock_offset_s: float | None
    disks: list[Disk]
    images: list[str]
    staged: dict[str, float]
    loads: list[Taken]
    written: dict[str, Written]
    records: list[str]
    runtime_memlock: dict[str, int | None] | None
    kubernetes: Kubernetes
    dgx_os: str | None
    bios: str | None
    modules: list[str]
    packages: dict[str, str]
    gpu_driver: str | None
    gpu_module: str | None
    gpu_runtime: str | None
    gpus: list[Gpu] | None
    rdma: Rdma
    pfs: list[Port]
    interfaces: list[str]
    addresses: dict[str, list[str]]
    wifi: list[str]
    default_routes: list[str]
    routes: dict[str, list[str]]
    nameservers: list[str]
    listeners: list[Listener]
    orphan_namespaces: list[Orphan]
    network_services: dict[str, dict[str, str]] | None
    netplan: Netplan
    firewall: Firewall
