# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check NCCL's environment before or while it is used. Private to the collection.

Source: param.cc, socket.cc, net_ib and debug.cc of NCCL 2.17.1 … 2.30.7, the libraries of 2.31.2 and 2.32.3, and NCCL's
manual of environment variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .._common.findings import Finding, Severity, sort_findings
from .._common.versions import Version
from .blinders import VARIABLES, blinds
from .environment_names import FIRST, FOREIGN_PREFIXES, INTEGERS, KNOWN, LAST
from .networks import is_tcp

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)$")
# strtoll with base 0 stops at the first character that is no digit, and takes 0x for base 16 and 0 for base 8.
_STRTOLL = re.compile(r"\s*([+-]?)(0[xX](?=[0-9a-fA-F])[0-9a-fA-F]+|0[0-7]*|[1-9]\d*|)")
_NETDEV = re.compile(r"(en|eth|wl|ww|br|bond|docker|cni|flannel|net\d|lo$)")
_HCA = re.compile(r"(mlx\d|roce|ibp|ibs|bnxt|irdma|efa_|rxe|siw|hns)")

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


@dataclass(frozen=True)
class _Context:
    env: Mapping[str, str]
    expect_rdma: bool
    hcas: Sequence[str]
    netdevs: Sequence[str]
    version: tuple[int, ...] | None
    where: str

    def finding(self, severity: Severity, rule: str, key: str, reason: str, remedy: str) -> Finding:
        source = "NCCL 2.17.1 to 2.32.3"
        return Finding(severity, f"nccl.env.{rule}", key, self.env.get(key), reason, remedy, self.where, source)


def read_integer(value: str) -> int | None:
    """Return the number that NCCL takes from a variable (strtoll in param.cc), None if it takes its default."""
    found = _STRTOLL.match(value)
    if not value or found is None:
        return None
    sign, digits = found.groups()
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    number = int(digits or "0", base) * (-1 if sign == "-" else 1)
    return number if -(1 << 63) <= number < 1 << 63 else None


def parse_conf(text: str) -> dict[str, str]:
    """Read ``/etc/nccl.conf`` or ``~/.nccl.conf`` as NCCL does: ``NAME=value``, ``#`` only in column one."""
    pairs = (line.rstrip("\r").partition("=") for line in text.splitlines() if not line.startswith("#"))
    conf: dict[str, str] = {}
    for name, sign, value in pairs:
        if sign:
            conf.setdefault(name, value)
    return conf


def effective_env(env: Mapping[str, str], *confs: Mapping[str, str]) -> dict[str, str]:
    """Merge the environment and the conf files in the order in which NCCL reads them; the first value of a key wins."""
    joined: dict[str, str] = {}
    for layer in (env, *confs):
        joined = {**layer, **joined}
    return joined


def _unknown(ctx: _Context) -> Iterator[Finding]:
    for key in (k for k in ctx.env if k.startswith("NCCL_")):
        if key in _NOT_NCCL:
            yield ctx.finding(
                "warning", "unknown", key, "NCCL does not read this variable", f"Remove it: {_NOT_NCCL[key]}"
            )
        elif key not in KNOWN:
            if not key.startswith(FOREIGN_PREFIXES):
                near = difflib.get_close_matches(key, KNOWN, 1, 0.8)
                hint = f"Did you mean {near[0]}?" if near else "Remove it, or check the spelling"
                why = f"no NCCL release up to {'.'.join(map(str, LAST))} reads this variable"
                yield ctx.finding("warning", "unknown", key, why, hint)
        elif ctx.version and FIRST <= ctx.version <= LAST:
            first, last = KNOWN[key]
            if not first <= ctx.version <= last:
                span = f"{_dotted(first)} to {_dotted(last)}"
                reason = f"NCCL {_dotted(ctx.version)} does not read this variable; {span} do"
                yield ctx.finding("warning", "version", key, reason, "Remove it, or use a release that reads it")


def _values(ctx: _Context) -> Iterator[Finding]:
    for key, value in ctx.env.items():
        if key in INTEGERS and value and not _INTEGER.match(value.strip()):
            reason = f"the value is not an integer; NCCL silently reads {read_integer(value)}"
            yield ctx.finding("error", "integer", key, reason, "Write a number")
        elif key in INTEGERS and not value:
            yield ctx.finding("info", "noop", key, "an empty number is ignored", "Remove it, or write a number")
        elif key in KNOWN and (value != value.strip() or (value[:1] in "\"'" and value)):
            reason = "blanks and quotes are part of the value for NCCL"
            yield ctx.finding("error", "quoted", key, reason, "Write the bare value")
    if "CUDA_LAUNCH_BLOCKING" in ctx.env:
        reason = "NCCL only checks whether the variable is set: launches are serialised even if it is 0"
        yield ctx.finding("warning", "presence", "CUDA_LAUNCH_BLOCKING", reason, "Remove it")


def _transport(ctx: _Context) -> Iterator[Finding]:
    net, disable = ctx.env.get("NCCL_NET"), ctx.env.get("NCCL_IB_DISABLE", "").strip()
    off = bool(read_integer(disable))
    if net == "":
        reason = "NCCL looks for a network with an empty name and does not choose one itself: initialisation fails"
        yield ctx.finding("error", "empty", "NCCL_NET", reason, "Remove it, or name a network")
    if disable == "0":
        yield ctx.finding("info", "noop", "NCCL_IB_DISABLE", "0 is NCCL's default", "Remove it")
    if ctx.expect_rdma and off:
        reason = "RDMA is expected, but this disables NCCL's own IB/RoCE transport"
        yield ctx.finding(
            "error", "disabled", "NCCL_IB_DISABLE", reason, "Remove it; look in /etc/nccl.conf and the image too"
        )
    if ctx.expect_rdma and net is not None and is_tcp(net):
        yield ctx.finding(
            "error", "socket", "NCCL_NET", "RDMA is expected, and this forces TCP", "Remove it, or write IB"
        )
    if net and net.upper().startswith("IB") and off:
        reason = "NCCL_NET demands IB, but NCCL_IB_DISABLE disables it: initialisation fails"
        yield ctx.finding("error", "contradiction", "NCCL_NET", reason, "Remove NCCL_IB_DISABLE or NCCL_NET")
    if not ctx.expect_rdma and net and not is_tcp(net):
        yield ctx.finding(
            "error", "rdma", "NCCL_NET", "TCP is expected, and this forces another network", "Write Socket"
        )
    if not ctx.expect_rdma and off and net is None and ctx.env.get("NCCL_NET_PLUGIN", "") != "none":
        reason = "it disables only NCCL's own IB transport; a plugin in the image (IBext) still uses RDMA"
        yield ctx.finding("warning", "plugin", "NCCL_IB_DISABLE", reason, "Set NCCL_NET=Socket as well")
    if net and net.lower() == "socket" and "NCCL_IB_HCA" in ctx.env:
        yield ctx.finding("info", "noop", "NCCL_IB_HCA", "NCCL_NET=Socket uses no HCA", "Remove it")
    gid = read_integer(ctx.env.get("NCCL_IB_GID_INDEX", ""))
    if gid is not None and gid >= 0:
        own = ctx.version is None or ctx.version >= (2, 21, 5)
        reason = "GID indices shift when a link bounces or an address changes" + (
            ", and since 2.21 NCCL finds the RoCE v2 GID of an IPv4 address by itself" if own else ""
        )
        remedy = "Remove it; NCCL_IB_ADDR_RANGE chooses by address" if own else "Use NCCL 2.21 or later and remove it"
        yield ctx.finding("error" if own else "warning", "gid_index", "NCCL_IB_GID_INDEX", reason, remedy)


@dataclass(frozen=True)
class _Names:
    """A device list in NCCL's syntax: ``[^][=]name[:port],…``; a bare name is a prefix, ``=`` requires exact names."""

    negated: bool
    exact: bool
    names: tuple[str, ...]

    @classmethod
    def parse(cls, value: str) -> _Names:
        negated = value.startswith("^")
        rest = value[negated:]
        exact = rest.startswith("=")
        return cls(negated, exact, tuple(part.split(":")[0] for part in rest[exact:].split(",") if part))

    def chosen(self, present: Sequence[str]) -> list[str]:
        def named(device: str) -> bool:
            return any(device == name if self.exact else device.startswith(name) for name in self.names)

        return [device for device in present if named(device) != self.negated]

    def prefix_surprises(self, present: Sequence[str]) -> list[str]:
        """Return devices that match only because the full name of another device is a prefix of their name."""
        if self.exact:
            return []
        whole = [name for name in self.names if name in present]
        return [d for d in present if d not in self.names and any(d.startswith(name) for name in whole)]


def _devices(
    ctx: _Context,
    key: str,
    present: Sequence[str],
    other: Sequence[str],
    foreign: re.Pattern[str],
    kind: str,
    missing: str,
) -> Iterator[Finding]:
    value = ctx.env.get(key)
    if value is None:
        return
    wanted = _Names.parse(value)
    if not wanted.names:
        yield ctx.finding("warning", "empty", key, "an empty list chooses nothing", "Remove it, or name devices")
        return
    blank = [name for name in wanted.names if name != name.strip()]
    if blank:
        yield ctx.finding(
            "error", "blank", key, "NCCL treats blanks as part of a name", "Separate names by commas alone"
        )
    strange = [n for n in wanted.names if n not in present and (n in other or (not present and foreign.match(n)))]
    if strange:
        names = ", ".join(strange)
        hint = f"Use {kind}: {', '.join(present)}" if present else f"Use {kind}"
        yield ctx.finding("error", "wrong_kind", key, f"{names} is not the name of {kind}", hint)
    if not present:
        return
    chosen = wanted.chosen(present)
    if not chosen and not strange:
        yield ctx.finding(
            "error", "no_match", key, f"no device of this host matches; {missing}", f"Use {', '.join(present)}"
        )
    surprises = wanted.prefix_surprises(present)
    if surprises:
        reason = f"names are prefixes, so this also includes or excludes {', '.join(surprises)}"
        yield ctx.finding("warning", "prefix", key, reason, "Put = before the first name to ask for exact names")
    if chosen and key == "NCCL_IB_HCA" and len(chosen) < len(present):
        left = ", ".join(d for d in present if d not in chosen)
        yield ctx.finding(
            "warning", "unused", key, f"these devices stay unused: {left}", "Name them too, or ignore this if intended"
        )


def _logging(ctx: _Context) -> Iterator[Finding]:
    # Without NCCL_DEBUG, NCCL logs no INFO.
    given = {"NCCL_DEBUG": ""} | {name: ctx.env[name] for name in VARIABLES if name in ctx.env}
    for name, how in ((name, blinds(name, value)) for name, value in given.items()):
        if how == "silent":
            reason = "NCCL logs its transport only at level INFO or above, so this log cannot prove it"
            yield ctx.finding("warning", "silent", name, reason, "Set NCCL_DEBUG=INFO")
        elif how == "masked":
            reason = "the lines that prove the transport belong to INIT and NET, and this turns off one of them"
            yield ctx.finding("warning", "masked", name, reason, "Set NCCL_DEBUG_SUBSYS=INIT,NET,ENV")
        elif how == "conf_file":
            reason = "NCCL takes variables from a place that is not checked here"
            yield ctx.finding("warning", "conf_file", name, reason, "Remove it")
        elif how == "host_id":
            reason = "NCCL takes ranks with one value of it for ranks of one host, which need no network"
            yield ctx.finding("warning", "host_id", name, reason, "Remove it")
    if "NCCL_DEBUG_FILE" in ctx.env and ctx.version is not None and ctx.version < (2, 27, 3):
        reason = (
            "the file is block-buffered before NCCL 2.27.3: lines appear late, and a killed rank loses its last ones"
        )
        yield ctx.finding("warning", "buffered", "NCCL_DEBUG_FILE", reason, "Use NCCL 2.27.3 or later")


def _gloo(ctx: _Context) -> Iterator[Finding]:
    value = ctx.env.get("GLOO_SOCKET_IFNAME", "")
    if value[:1] in ("^", "=") and value:
        reason = "Gloo supports neither ^ nor =, only exact names"
        yield ctx.finding("error", "gloo", "GLOO_SOCKET_IFNAME", reason, "Write the bare interface name")
    elif missing := [name for name in value.split(",") if name and ctx.netdevs and name not in ctx.netdevs]:
        reason = f"{', '.join(missing)} does not exist here; Gloo then fails with 'Unable to find address for'"
        remedy = f"Use one of {', '.join(ctx.netdevs)}"
        yield ctx.finding("error", "gloo_missing", "GLOO_SOCKET_IFNAME", reason, remedy)


def _inline(ctx: _Context) -> Iterator[Finding]:
    both = ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
    if all(read_integer(ctx.env.get(key, "")) for key in both):
        reason = f"with {both[1]} also on, SGLang's warm-up hangs on a GB10"
        yield ctx.finding("error", "inline", both[0], reason, "Unset one of them; look in /etc/nccl.conf too")


def _hca(ctx: _Context) -> Iterator[Finding]:
    missing = "NCCL then falls back to TCP silently" if ctx.env.get("NCCL_NET") != "IB" else "initialisation then fails"
    yield from _devices(ctx, "NCCL_IB_HCA", ctx.hcas, ctx.netdevs, _NETDEV, "an RDMA device (rdma link)", missing)


def _interface(ctx: _Context) -> Iterator[Finding]:
    missing = "NCCL then fails with 'no socket interface found'"
    yield from _devices(
        ctx, "NCCL_SOCKET_IFNAME", ctx.netdevs, ctx.hcas, _HCA, "a network interface (ip link)", missing
    )


_RULES: tuple[Callable[[_Context], Iterator[Finding]], ...] = (
    _unknown,
    _values,
    _transport,
    _hca,
    _interface,
    _logging,
    _gloo,
    _inline,
)


def lint_env(
    env: Mapping[str, str],
    *,
    expect_rdma: bool,
    hcas: Sequence[str],
    netdevs: Sequence[str],
    nccl_version: str | None,
    where: str = "",
) -> list[Finding]:
    """Return all findings about ``env``, worst first.

    ``hcas`` and ``netdevs`` are the RDMA devices and interfaces that the process will see (empty: unknown).
    ``nccl_version`` has the form in which NCCL prints it. ``where`` is the rank or pod that the findings name.
    """
    version = Version.find(nccl_version)
    ctx = _Context(env, expect_rdma, hcas, netdevs, version.release if version else None, where)
    return sort_findings(finding for rule in _RULES for finding in rule(ctx))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
