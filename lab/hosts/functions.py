# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the sysfs entries of one PF or VF: PCI function, interface and RDMA device."""

import dataclasses

import gids
from netlink import Address, Link
from tree import Symlink

MIRRORED = ("address", "addr_assign_type", "carrier", "carrier_changes", "flags", "ifindex", "ifalias", "mtu",
            "operstate", "statistics", "tx_queue_len", "type")  # fmt: skip
SPEED = 200000
COUNTERS = ("port_rcv_errors", "port_xmit_discards", "symbol_error", "link_downed", "port_rcv_packets",
            "port_xmit_packets", "port_xmit_wait")  # fmt: skip
HW_COUNTERS = ("duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err", "np_cnp_sent",
               "np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error",
               "resp_cqe_error", "rnr_nak_retry_err", "roce_adp_retrans", "roce_slow_restart", "rp_cnp_handled",
               "rx_read_requests", "rx_write_requests")  # fmt: skip


@dataclasses.dataclass
class Function:
    """A PCI function in port ``slot`` of the NIC. ``vf_index`` is None for a PF; ``uverbs`` is its device's number."""

    slot: int
    vf_index: int | None
    bdf: str
    pf_bdf: str
    netdev: str
    rdma: str
    port: str
    uverbs: int
    table: gids.Table = dataclasses.field(default_factory=gids.Table)
    # counters of the RDMA port in bytes; see traffic.py
    sent: int = 0
    received: int = 0

    @property
    def directory(self) -> str:
        """Path of the PCI function below sysfs."""
        return f"devices/pci{self.bdf[:4]}:00/{self.bdf}"

    def files(self, link: Link | None, addresses: list[Address], *, here: bool) -> dict[str, str | Symlink]:
        """Return its files. ``link`` is its interface in any namespace; ``here`` is True if that is the host's."""
        self.table.update(link.mac if link else None, [a.address for a in addresses])
        out: dict[str, str | Symlink] = {}
        out |= self._pci()
        if link and here:
            out |= self._netdev(link)
        out |= self._rdma(link)
        return out

    def _pci(self) -> dict[str, str | Symlink]:
        top, up = self.directory, "../../.."
        files: dict[str, str | Symlink] = {
            f"{top}/vendor": "0x15b3\n",
            f"{top}/device": "0x1021\n" if self.vf_index is None else "0x101e\n",
            f"{top}/class": "0x020000\n",
            f"{top}/numa_node": "0\n",
            f"{top}/uevent": f"DRIVER=mlx5_core\nPCI_SLOT_NAME={self.bdf}\n",
            f"{top}/driver": Symlink(f"{up}/bus/pci/drivers/mlx5_core"),
            f"bus/pci/drivers/mlx5_core/{self.bdf}": Symlink(f"../../../../{top}"),
            f"bus/pci/devices/{self.bdf}": Symlink(f"../../../{top}"),
        }
        for which in ("current", "max"):
            files[f"{top}/{which}_link_speed"] = "32.0 GT/s PCIe\n"
            files[f"{top}/{which}_link_width"] = "4\n"
        if self.vf_index is not None:
            files[f"{top}/physfn"] = Symlink(f"../{self.pf_bdf}")
        return files

    def _netdev(self, link: Link) -> dict[str, str | Symlink]:
        top = f"{self.directory}/net/{link.name}"
        files: dict[str, str | Symlink] = {f"{top}/{name}": Symlink(f"/sys/class/net/{link.name}/{name}")
                                           for name in MIRRORED}  # fmt: skip
        files |= {
            f"{top}/device": Symlink("../.."),
            f"{top}/dev_port": "0\n",
            f"{top}/duplex": "full\n",
            f"{top}/speed": f"{SPEED if link.carrier else -1}\n",
            f"class/net/{link.name}": Symlink(f"../../{top}"),
        }
        return files

    def _rdma(self, link: Link | None) -> dict[str, str | Symlink]:
        top = f"{self.directory}/infiniband/{self.rdma}"
        active = bool(link and link.up and link.carrier)
        files: dict[str, str | Symlink] = {
            f"class/infiniband/{self.rdma}": Symlink(f"../../{top}"),
            f"class/infiniband_verbs/uverbs{self.uverbs}/ibdev": f"{self.rdma}\n",
            f"class/infiniband_verbs/uverbs{self.uverbs}/dev": f"231:{192 + self.uverbs}\n",
            f"class/infiniband_verbs/uverbs{self.uverbs}/abi_version": "1\n",
            f"{top}/device": Symlink("../.."),
            f"{top}/node_type": "1: CA\n",
            f"{top}/node_desc": f"gb10.cluster lab stand-in {self.rdma}\n",
            f"{top}/fw_ver": "28.45.4028\n",
            f"{top}/hca_type": "MT4129\n",
            f"{top}/ports/1/state": "4: ACTIVE\n" if active else "1: DOWN\n",
            f"{top}/ports/1/phys_state": "5: LinkUp\n" if active else "3: Disabled\n",
            f"{top}/ports/1/rate": "200 Gb/sec (4X HDR)\n",
            f"{top}/ports/1/link_layer": "Ethernet\n",
            f"{top}/ports/1/lid": "0x0\n",
            f"{top}/ports/1/counters/port_xmit_data": f"{self.sent // 4}\n",
            f"{top}/ports/1/counters/port_rcv_data": f"{self.received // 4}\n",
            **{f"{top}/ports/1/counters/{name}": "0\n" for name in COUNTERS},
            **{f"{top}/ports/1/hw_counters/{name}": "0\n" for name in HW_COUNTERS},
        }
        for index, entry in enumerate(self.table.slots):
            files[f"{top}/ports/1/gids/{index}"] = f"{entry[0] if entry else gids.EMPTY}\n"
            # for an empty slot the kernel returns EINVAL; here the file is missing
            if entry and link:
                files[f"{top}/ports/1/gid_attrs/types/{index}"] = f"{entry[1]}\n"
                files[f"{top}/ports/1/gid_attrs/ndevs/{index}"] = f"{link.name}\n"
        return files
