# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that no node, and no hub, chooses where the other nodes write models, what they trust, or how much it is."""

import copy
import email.message
import io
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import model_share_plan
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, share, store
from ansible_collections.gb10.cluster.plugins.plugin_utils._models.plan import Listing, Stock
from model_transfers import REPO, files

SHA = "0123456789abcdef" * 4
LISTING = {"commit": "c0ffee", "files": [vars(file) for file in files()]}
ESCAPES = [
    "../../../etc/cron.d/evil",
    "/etc/cron.d/evil",
    "a/../../evil",
    "a//b",
    "a/./b",
    "./a",
    "..",
    ".",
    "",
    "a/",
    "a\nb",
    "a\0b",
    "a\x1b[2J",
    "..\\evil",
    "a" * 241,
    "/".join("a" * 600),
    store.MARKER,
    f"sub/{store.MARKER}",
    f"a{store.PART}",
]
OTHERS: list[Any] = [None, 5, -1, 2**70, 1.5, float("nan"), True, b"a", [], ["a"], {}, {"a": "b"}, "{{ 1 }}\n"]
Place = tuple[str | int, ...]


def node(number: int) -> dict[str, Any]:
    """Return the stock of an honest node, in which every field has a value."""
    model = {"dest": "/srv/models/org--tiny", "commit": "c0ffee", "complete": False, "error": "none"}
    model |= {"listing": copy.deepcopy(LISTING), "held": {"x": {"digest": SHA, "size": 1}}, "parts": {"y": 1}}
    disk = {"path": "/srv/models", "free_bytes": 10**12, "reserve_bytes": 0}
    return {"disk": disk, "addresses": [f"10.100.0.{number}/24"], "models": {REPO: model}}


def planned(nodes: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    action = model_share_plan.ActionModule.__new__(model_share_plan.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    return action.act({"nodes": nodes, "share": True, **options}, {})


def places(kind: Any, value: Any, at: Place = ()) -> Iterator[Place]:
    """Return where each field of the stock is, by the types of its classes; "*" stands for the key of a mapping."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        for field in fields(kind):
            if at or field.name != "name":  # the controller gives the node's name
                yield from places(hints[field.name], value[field.name], (*at, field.name))
        return
    yield at
    inner = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is tuple:
        yield from places(inner[0], value[0], (*at, 0))
    elif len(inner) == 2:
        key, *_others = value
        yield (*at, "*")
        yield from places(inner[1], value[key], (*at, key))
    elif inner and is_dataclass(inner[0]):
        yield from places(inner[0], value, at)


FIELDS = list(places(Stock, node(2)))


def changed(place: Place, value: Any) -> dict[str, Any]:
    """Return two nodes, of which the second one lies in one field."""
    nodes = {"spark1": node(1), "spark2": node(2)}
    *way, last = place
    part: Any = nodes["spark2"]
    for step in way:
        part = part[step]
    if last == "*":
        part[value] = part.pop(next(iter(part)))
    else:
        part[last] = value
    return nodes


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("models", REPO, "dest"), "srv/models", "no directory of a model"),
        (("disk", "free_bytes"), 1.5, "not a number of bytes"),
        (("disk", "reserve_bytes"), 2**63, "not a number of bytes"),
        (("models", REPO, "parts"), {"a": -1}, "not a number of bytes"),
        (("models", REPO, "commit"), 5, "not a printable text"),
        (("addresses",), [f"10.{number % 250}.0.1/24" for number in range(513)], "more than 512 addresses"),
        (("addresses",), [f"10.{number % 250}.0.1/24" for number in range(512)], ""),
    ],
)
def test_a_stock_of_another_kind_is_refused(place: Place, value: Any, why: str) -> None:
    given = changed(place, value)["spark2"]
    stock = Stock.of("spark2", given | {"models": {"org/first": node(2)["models"][REPO], **given["models"]}})
    with pytest.raises(ValueError, match=why) if why else nullcontext():
        stock.check()


def test_every_field_of_a_stock_is_tried() -> None:
    names = {step for place in FIELDS for step in place}
    assert {"dest", "commit", "name", "size", "digest", "algorithm", "free_bytes", "addresses", "parts"} <= names
    assert len(FIELDS) > 20


@pytest.mark.parametrize("place", FIELDS, ids=lambda place: ".".join(map(str, place)))
def test_a_node_that_lies_in_one_field_is_refused_or_changes_nothing_of_the_others_files(place: Place) -> None:
    usual = planned({"spark1": node(1), "spark2": node(2)})["nodes"]["spark1"]["models"]
    for value in [*ESCAPES, *OTHERS]:
        if place[-1] == "*" and not isinstance(value, (str, int, float, bytes)):
            continue
        try:
            result = planned(changed(place, value))
        except AnsibleActionFail as error:
            assert "spark2" in str(error) or "different models" in str(error)
            assert len(str(error)) < 600
            continue
        if not result.get("failed"):
            assert result["nodes"]["spark1"]["models"] == usual, value


def more(listing: dict[str, Any]) -> None:
    listing["files"].append(vars(store.File("evil", 1, SHA, "sha256")))


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "commit": lambda listing: listing.update(commit="beef"),
    "more files": more,
    "fewer files": lambda listing: listing["files"].pop(),
    "name": lambda listing: listing["files"][0].update(name="evil"),
    "size": lambda listing: listing["files"][0].update(size=7),
    "digest": lambda listing: listing["files"][0].update(digest="beef"),
    "algorithm": lambda listing: [file.update(algorithm="git") for file in listing["files"]],
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("liar", ["spark1", "spark2"])
def test_no_node_decides_alone_what_the_others_write_and_trust(liar: str, lie: str) -> None:
    nodes = {"spark1": node(1), "spark2": node(2)}
    LIES[lie](nodes[liar]["models"][REPO]["listing"])
    result = planned(nodes)
    assert (result["failed"], "nodes" in result) == (True, False)
    assert "models.disagree" in {finding["rule"] for finding in result["findings"]}


@pytest.mark.parametrize("name", ESCAPES, ids=lambda name: ascii(name)[:30])
def test_a_name_that_leaves_the_directory_is_refused_by_the_type_the_plan_and_the_receiver(name: str) -> None:
    with pytest.raises(store.ListingError):
        store.File(name, 1, SHA, "sha256")
    with pytest.raises(AnsibleActionFail, match="spark2"):
        planned(changed(("models", REPO, "listing", "files", 0, "name"), name))
    file = {"name": name, "size": 1, "digest": SHA, "algorithm": "sha256"}
    with pytest.raises(store.ListingError):
        share.items_of([{"repo": REPO, "commit": "c0ffee", "dest": "/srv/models/x", "files": [file]}])


@pytest.mark.parametrize("name", ["a" * 240, "\u00e4" * 120, ".hidden", "a..b/c"])
def test_an_unusual_name_inside_the_directory_is_accepted_also_of_an_empty_file(name: str) -> None:
    assert store.File(name, 0, SHA, "sha256").name == name


@pytest.mark.parametrize("digest", [5, None, "beef\n", ""])
def test_what_is_no_digest_is_refused(digest: Any) -> None:
    with pytest.raises(store.ListingError):
        store.File("a", 1, digest, "sha256")


@pytest.mark.parametrize(
    "names", [["a", "a"], ["a", "a/b"], ["a", "b", "c"]], ids=["twice", "below a file", "too many"]
)
def test_files_that_exclude_each_other_are_refused(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FILES", 2)
    listed = [{"name": name, "size": 1, "digest": SHA, "algorithm": "sha256"} for name in names]
    with pytest.raises(store.ListingError):
        share.items_of([{"repo": REPO, "commit": "c0ffee", "dest": "/srv/models/x", "files": listed}])
    with pytest.raises(store.ListingError):
        Listing("c0ffee", tuple(store.File(**file) for file in listed))


@pytest.mark.parametrize("commit", ["../../api", "a/b", "", "a?b", "-x", "a b", 5, None])
def test_a_commit_that_changes_the_address_is_refused(commit: Any) -> None:
    with pytest.raises(store.ListingError):
        share.items_of([{"repo": REPO, "commit": commit, "dest": "/srv/models/x", "files": []}])
    with pytest.raises(store.ListingError):
        Listing(commit, ())


def test_the_list_that_the_controller_reads_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""{{"sha": "c0ffee", "siblings": [{{"rfilename": "a", "lfs": {{"size": 1, "sha256": "{SHA}"}}}}]}}"""
    monkeypatch.setattr(fetch.Hub, "listing", lambda *_: text)
    asked = {"models": [{"repo": REPO, "revision": "main"}], "url": "https://hub", "token": ""}
    result = planned({"spark1": node(1), "spark2": node(2)}, **asked)
    assert result["failed"]
    (finding,) = (each for each in result["findings"] if each["rule"] == "models.disagree")
    assert "spark1, spark2" in " ".join(map(str, finding.values()))


def test_one_node_that_alone_reads_the_list_is_told() -> None:
    nodes = {"spark1": node(1), "spark2": node(2)}
    nodes["spark2"]["models"][REPO]["listing"] = None
    result = planned(nodes)
    assert [finding["rule"] for finding in result["findings"]] == ["models.one_witness"]


@pytest.mark.parametrize(("mode", "there"), [("wb", 0), ("ab", 4)])
def test_no_more_is_written_than_was_announced(mode: str, there: int, tmp_path: Path) -> None:
    part, counted = tmp_path / "a.part", list[int]()
    part.write_bytes(b"a" * there)

    class Endless(io.BufferedIOBase):
        def read1(self, size: int = -1) -> bytes:
            assert 0 < size <= 11
            return b"x" * size

    with pytest.raises(fetch.FetchError, match="longer than its listing says"):
        fetch.save(Endless(), part, mode, 10 - there, lambda: True, counted.append)
    assert (sum(counted), part.exists()) == (0, False)


def test_a_listing_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LISTING_BYTES", 100)
    monkeypatch.setattr(fetch.Hub, "_open", lambda *_: io.BytesIO(b"a" * 101))
    with pytest.raises(fetch.FetchError, match="more than 100 bytes"):
        fetch.Hub("https://hub").listing(REPO, "main")


@pytest.mark.parametrize(
    ("to", "sent"),
    [
        ("https://hub.example/other", True),
        ("http://hub.example/other", False),
        ("https://cdn.example/other", False),
        ("https://hub.example:8443/other", False),
    ],
)
def test_the_token_is_not_sent_to_another_server_and_never_to_http(to: str, sent: bool) -> None:
    asked = urllib.request.Request("https://hub.example/file", headers={"Authorization": "Bearer secret"})
    answer = email.message.Message()
    following = fetch._KeepToken().redirect_request(asked, io.BytesIO(), 302, "Found", answer, to)  # type: ignore[arg-type]
    assert following is not None
    assert following.has_header("Authorization") is sent
