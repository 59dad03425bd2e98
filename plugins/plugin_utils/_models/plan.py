# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan which node downloads which files of the models, and which nodes copy them from each other over the fabric.

Each file is downloaded once per group of nodes that reach each other. Nodes that have it are sources, and so are those
that got it. All problems are findings, before the first byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface
from itertools import permutations
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._models.store import File, check_commit, check_files, human

from .._controller.data import Rules

_finding = Rules("_models").finding
# Of each node, the nodes that it reaches, and over which addresses.
Paths = dict[str, dict[str, list[tuple[str, str]]]]
ADDRESSES = 512  # of one node: four PFs with up to 127 VFs each


@dataclass(frozen=True)
class Listing:
    """The commit and the files of a model, as the hub states them. Raise ListingError if a model can't have them."""

    commit: str
    files: tuple[File, ...]

    def __post_init__(self) -> None:
        check_commit(self.commit)
        check_files(self.files)


@dataclass(frozen=True)
class Held:
    """Digest and size of a verified file. The digest of a file that somebody copied there is empty."""

    digest: str
    size: int


@dataclass(frozen=True)
class ModelStock:
    """What a node has of a model: the verified files, and the sizes of partial ones.

    ``listing`` is None if the node can't read it from the hub, for the reason ``error``.
    """

    dest: str
    commit: str
    complete: bool
    held: Mapping[str, Held]
    parts: Mapping[str, int]
    listing: Listing | None
    error: str

    def has(self, file: File) -> bool:
        """Return whether a file is there and verified."""
        return self.held.get(file.name) == Held(file.digest, file.size)

    def left(self, file: File) -> int:
        """Return how many bytes of a file are missing."""
        if self.has(file) or self.is_copied(file):
            return 0
        return file.size - min(file.size, self.parts.get(file.name, 0))

    def is_copied(self, file: File) -> bool:
        """Return whether a file is there whose digest has to be compared."""
        return self.held.get(file.name) == Held("", file.size)


@dataclass(frozen=True)
class Disk:
    """The file system of the models: its free bytes, and how many of them must stay free."""

    path: str
    free_bytes: int
    reserve_bytes: int


@dataclass(frozen=True)
class Stock:
    """One node: its models, its disk, and its addresses in the fabric that are on the host now."""

    name: str
    disk: Disk
    addresses: tuple[str, ...]
    models: Mapping[str, ModelStock]

    @classmethod
    def of(cls, name: str, value: Mapping[str, Any]) -> Stock:
        """Return the node of a result of model_stock_info."""
        return plain.load(cls, {**value, "name": name})

    def check(self) -> None:
        """Raise ValueError or TypeError for a value of another kind than this class says."""
        sizes = [self.disk.free_bytes, self.disk.reserve_bytes]
        texts = [self.disk.path, *self.addresses]
        for repo, model in self.models.items():
            sizes += [held.size for held in model.held.values()] + list(model.parts.values())
            texts += [repo, model.dest, model.commit, model.error, *model.held, *model.parts]
            texts += [held.digest for held in model.held.values()]
            if not isinstance(model.complete, bool):
                raise TypeError(f"{model.complete!r} is neither true nor false")
            if not model.dest.startswith("/") or ".." in model.dest.split("/"):
                raise ValueError(f"{model.dest!r} is no directory of a model")
        for size in sizes:
            if not isinstance(size, int) or not 0 <= size < 2**63:
                raise ValueError(f"{size!r} is not a number of bytes")
        for text in texts:
            if not isinstance(text, str) or not text.isprintable():
                raise ValueError(f"{text!r} is not a printable text")
        if len(self.interfaces) > ADDRESSES:
            raise ValueError(f"more than {ADDRESSES} addresses")

    @property
    def interfaces(self) -> list[IPv4Interface]:
        """Return the addresses with their networks."""
        return list(map(IPv4Interface, self.addresses))


@dataclass(frozen=True)
class NodePlan:
    """What one node does: the names of files that it downloads, its peers, and the addresses on which it serves."""

    place: int
    models: tuple[Mapping[str, Any], ...]
    hub: tuple[str, ...]
    peers: tuple[Mapping[str, Any], ...]
    addresses: tuple[str, ...]
    download_bytes: int
    copy_bytes: int


@dataclass(frozen=True)
class SharePlan:
    """The plan of all nodes. ``needed`` is false if all files and records are there.

    After ``rounds`` copies from neighbours, each node has all files: one, but several in a ring. At least one, since a
    node that has all files may lack their record.
    """

    nodes: Mapping[str, NodePlan]
    needed: bool
    rounds: int
    table: str


def plan_share(
    stocks: Sequence[Stock], share: bool = True, own: Mapping[str, Listing] | None = None
) -> tuple[SharePlan, list[Finding]]:
    """Return the plan and all findings; with ``share`` false, each node downloads all that it lacks.

    ``own`` are the listings that the controller read. Without that of a model, all nodes that read one must agree.
    """
    findings: list[Finding] = []
    listings: dict[str, Listing] = {}
    for repo in stocks[0].models:
        known = {stock.name: listing for stock in stocks if (listing := stock.models[repo].listing)}
        agreed = (own or {}).get(repo) or next(iter(known.values()), None)
        if not agreed:
            findings.append(_finding("models.listing", None, key=repo, reasons=_errors(stocks, repo)))
            continue
        listings[repo] = agreed
        wanted = agreed.commit, set(agreed.files)
        others = [name for name, listing in known.items() if (listing.commit, set(listing.files)) != wanted]
        if others:
            source = "the controller" if (own or {}).get(repo) else next(iter(known))
            findings.append(_finding("models.disagree", None, ", ".join(others), key=repo, source=source))
        elif len(known) == 1 and len(stocks) > 1 and not (own or {}).get(repo):
            findings.append(_finding("models.one_witness", None, next(iter(known)), key=repo))
    findings += [finding for stock in stocks if (finding := _too_small(stock, listings))]
    paths = _paths(stocks) if share else {}
    hub: dict[str, list[str]] = {stock.name: [] for stock in stocks}
    rounds = 1
    for repo, listing in listings.items():
        for group in _groups(stocks, paths):
            lost = _assign(group, repo, listing, hub)
            if lost:
                where, reasons = ", ".join(stock.name for stock in group), _errors(group, repo)
                findings.append(_finding("models.unreachable", f"{len(lost)} files", where, key=repo, reasons=reasons))
        for file in listing.files:
            have = [s.name for s in stocks if s.models[repo].has(file) or f"{repo}/{file.name}" in hub[s.name]]
            rounds = max([rounds, *_distances(have, paths).values()])
    if share and len(stocks) > 1:
        lonely = [s for s in stocks if s.name not in paths and _left(s, listings)]
        findings += [_finding("models.alone", None, stock.name) for stock in lonely]
    nodes = {stock.name: _node(place, stock, listings, hub[stock.name], paths) for place, stock in enumerate(stocks)}
    needed = any(
        not (stock.models[repo].complete and stock.models[repo].commit == listing.commit) or _left(stock, listings)
        for stock in stocks
        for repo, listing in listings.items()
    )
    needed = needed and not has_errors(findings)
    return SharePlan(nodes, needed, rounds, _table(listings, nodes)), sort_findings(findings)


def _left(stock: Stock, listings: Mapping[str, Listing]) -> int:
    return sum(stock.models[repo].left(file) for repo, listing in listings.items() for file in listing.files)


def _paths(stocks: Sequence[Stock]) -> Paths:
    """Return the networks in which two nodes have an address, each as (address of the second, of the first)."""
    found: Paths = {}
    for ours, theirs in permutations(stocks, 2):
        pairs = [
            (str(other.ip), str(own.ip))
            for own in ours.interfaces
            for other in theirs.interfaces
            if own.network == other.network and own.ip != other.ip
        ]
        if pairs:
            found.setdefault(ours.name, {})[theirs.name] = pairs
    return found


def _distances(have: Iterable[str], paths: Paths) -> dict[str, int]:
    """Return the nodes that are connected with some, also over others, each with the number of steps to it."""
    found = dict.fromkeys(have, 0)
    waiting = deque(found)
    while waiting:
        name = waiting.popleft()
        for other in paths.get(name, {}):
            if other not in found:
                found[other] = found[name] + 1
                waiting.append(other)
    return found


def _groups(stocks: Sequence[Stock], paths: Paths) -> list[list[Stock]]:
    """Return the nodes in groups that are connected."""
    groups = {stock.name: frozenset(_distances([stock.name], paths)) for stock in stocks}
    return [[stock for stock in stocks if stock.name in names] for names in dict.fromkeys(groups.values())]


def _assign(group: Sequence[Stock], repo: str, listing: Listing, hub: dict[str, list[str]]) -> list[File]:
    """Let one node download what no node of the group has; return the files for which no node reaches the hub.

    The node is the first that reaches the hub, or the one that has the largest part of a file. A node to which somebody
    copied the whole file only compares its digest.
    """
    wanted = [file for file in listing.files if not any(stock.models[repo].has(file) for stock in group)]
    able = [stock for stock in group if stock.models[repo].listing]
    if not able:
        return wanted
    for file in wanted:
        copied = [stock for stock in group if stock.models[repo].is_copied(file)]
        best = max(copied or able, key=lambda stock: stock.models[repo].parts.get(file.name, 0))
        hub[best.name].append(f"{repo}/{file.name}")
    return []


def _node(
    place: int,
    stock: Stock,
    listings: Mapping[str, Listing],
    hub: Sequence[str],
    paths: Paths,
) -> NodePlan:
    lacking = [
        (f"{repo}/{file.name}", stock.models[repo].left(file))
        for repo, listing in listings.items()
        for file in listing.files
    ]
    peers: tuple[dict[str, Any], ...] = tuple(
        {"name": name, "paths": [{"to": to, "via": via} for to, via in pairs]}
        for name, pairs in paths.get(stock.name, {}).items()
    )
    return NodePlan(
        place=place,
        models=tuple(
            {
                "repo": repo,
                "commit": listing.commit,
                "dest": stock.models[repo].dest,
                "files": [asdict(file) for file in listing.files],
            }
            for repo, listing in listings.items()
        ),
        hub=tuple(hub),
        peers=peers,
        addresses=tuple(sorted({path["via"] for peer in peers for path in peer["paths"]})),
        download_bytes=sum(left for name, left in lacking if name in hub),
        copy_bytes=sum(left for name, left in lacking if name not in hub),
    )


def _table(listings: Mapping[str, Listing], nodes: Mapping[str, NodePlan]) -> str:
    lines = [
        f"{repo}, commit {listing.commit[:12]}: {human(sum(file.size for file in listing.files))},"
        f" {len(listing.files)} files"
        for repo, listing in listings.items()
    ]
    for name, node in nodes.items():
        doing = [f"downloads {human(node.download_bytes)} from the hub"] if node.download_bytes else []
        if node.hub and not node.download_bytes:
            doing = ["compares the files that are there with the digests of the hub"]
        if node.copy_bytes:
            sources = ", ".join(str(peer["name"]) for peer in node.peers)
            doing.append(f"copies {human(node.copy_bytes)} over the fabric from {sources}")
        lines.append(f"{name}: {' and '.join(doing) or 'has all files'}")
    return "\n".join(lines)


def _too_small(stock: Stock, listings: Mapping[str, Listing]) -> Finding | None:
    needed = _left(stock, listings)
    disk = stock.disk
    lacking = needed + disk.reserve_bytes - disk.free_bytes
    if not needed or lacking <= 0:
        return None
    words = {"needed": human(needed), "reserve": human(disk.reserve_bytes), "lacking": human(lacking)}
    return _finding("models.disk", f"{human(disk.free_bytes)} free", stock.name, key=disk.path, **words)


def _errors(stocks: Sequence[Stock], repo: str) -> str:
    """Return why each node can't read the list of a model's files."""
    return "; ".join(f"{stock.name}: {stock.models[repo].error}" for stock in stocks)
