# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generate the shapes in which programs print secrets, and test that no support bundle has one of them.

A shape is a name, a syntax that puts a value after or before it, a wrapping of the line, and a position in the text.
"""

import json
import random
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import redact as redacting
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import LONGEST_LINE, redact
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.modules import support_cluster_info as cluster
from ansible_collections.gb10.cluster.plugins.modules import support_info as sources

# No form of a known token, and characters that end a word in some notations.
SECRET = "hunter2zwei/Qx+9"
PARTS = ("hunter2", "zwei", "Qx+9", "Qx%2B9")
SHAPES = json.loads((Path(__file__).parents[1] / "fixtures/redact/secrets.json").read_text(encoding="utf-8"))
NAMES, SYNTAXES, PLACES, NEAR = (SHAPES[key] for key in ("names", "syntaxes", "places", "near"))
# In each syntax, ¤ is the name and § the value; % is a token in a place.
RED, BLUE, OFF = "\x1b[1;31m", "\x1b[38;2;1;2;3m", "\x1b[0m"
Wrap = Callable[[str], str]
# What a program does to the whole text.
WRAPPINGS: dict[str, Wrap] = {
    "plain": lambda text: text,
    "a line of SGLang": lambda text: f"[2026-11-28 10:00:00 TP0] {text}",
    "a line of the journal": lambda text: f"Nov 25 10:00:00 spark1 k3s[1]: {text}",
    "a line of containerd": lambda text: f"2026-11-28T10:00:00.1Z stderr F {text}",
    "a line of klog": lambda text: f"I1128 10:00:00.1  1 x.go:1] {text}",
    "with an indent": lambda text: "\n".join(f"    {line}" for line in text.split("\n")),
    "a string of JSON": lambda text: json.dumps({"msg": text}),
    "a string of JSON in JSON": lambda text: json.dumps({"log": json.dumps({"msg": text}), "stream": "stderr"}),
    "a string of Python": lambda text: f"msg={text!r}",
    "colours around the line": lambda text: f"{RED}{text}{OFF}",
}
# The colours of one part, and how a program writes the escape character.
COLOURS = {
    "colour of the name": ("¤", f"{RED}¤{OFF}"),
    "colour of the value": ("§", f"{BLUE}§{OFF}"),
    "colours of both": ("¤", f"{RED}¤{OFF}{BLUE}"),
    "colour in JSON": ("¤", "\\u001b[31m¤\\u001b[0m"),
    "colour in syslog": ("¤", "#033[31m¤#033[0m"),
    "colour as shown by cat": ("¤", "^[[31m¤^[[0m"),
    "colour in Python": ("¤", "\\x1b[31m¤\\x1b[0m"),
    "link of a terminal": ("¤", "\x1b]8;;http://h/\x07¤\x1b]8;;\x07"),
}
POSITIONS: tuple[Wrap, ...] = (
    lambda text: f"first line\n{text}\nmtu: 9000",
    lambda text: f"rank 0 starts with {text}",
    lambda text: f"{text}\n{text}",
)


def filled(syntax: str, name: str) -> str:
    """Put a name and the secret into a syntax."""
    return syntax.replace("¤", name).replace("§", SECRET)


def leaks(text: str) -> bool:
    """Return whether a part of the secret is left in the text."""
    said = redact(text)
    return any(part in said for part in PARTS)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_no_shape_leaks(wrapping: str) -> None:
    texts: list[str] = []
    for syntax in SYNTAXES:
        wrapped = [WRAPPINGS[wrapping](filled(syntax, name)) for name in NAMES]
        texts += wrapped + [position(wrapped[place]) for place, position in enumerate(POSITIONS)]
    assert [text for text in texts if leaks(text)] == []


@pytest.mark.parametrize("colour", COLOURS)
def test_no_colour_hides_a_name(colour: str) -> None:
    part, coloured = COLOURS[colour]
    texts = [filled(syntax.replace(part, coloured), name) for syntax in SYNTAXES for name in NAMES]
    assert [text for text in texts if leaks(text)] == []


CHARACTERS, UPPER, HEX = string.ascii_letters + string.digits, string.ascii_uppercase, "0123456789abcdef"
RANDOM = random.Random(47)
# Tokens whose beginning tells what they are, without a name.
VENDORS = {
    begin: begin + "".join(RANDOM.choices(letters, k=length))
    for begin, letters, length in (
        ("sk-", CHARACTERS, 48), ("sk-proj-", CHARACTERS, 48), ("sk-ant-api03-", CHARACTERS, 90),
        ("ghp_", CHARACTERS, 36), ("gho_", CHARACTERS, 36), ("github_pat_", CHARACTERS, 60), ("glpat-", CHARACTERS, 20),
        ("AKIA", UPPER, 16), ("ASIA", UPPER, 16), ("xoxb-", CHARACTERS, 40), ("xapp-1-", CHARACTERS, 40),
        ("nvapi-", CHARACTERS, 64),
        ("hf_", CHARACTERS, 34), ("npm_", CHARACTERS, 36), ("pypi-", CHARACTERS, 60), ("dckr_pat_", CHARACTERS, 27),
        ("AIza", CHARACTERS, 35), ("ya29.", CHARACTERS, 60),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", CHARACTERS, 43), ("hvs.", CHARACTERS, 24),
        ("gsk_", CHARACTERS, 52), ("sk_live_", CHARACTERS, 24), ("xai-", CHARACTERS, 80),
        ("SG.", CHARACTERS, 66), ("tskey-auth-", CHARACTERS, 30), ("r8_", CHARACTERS, 37), ("shpat_", HEX, 32),
        ("glsa_", CHARACTERS, 32), ("pplx-", CHARACTERS, 48), ("abcdef.", HEX, 16),
    )
}  # fmt: skip


@pytest.mark.parametrize("vendor", VENDORS)
def test_no_token_of_a_vendor_leaks_anywhere(vendor: str) -> None:
    token = VENDORS[vendor]
    texts = [place.replace("%", token) for place in PLACES if "." not in token[:8] or "://" not in place]
    assert [text for text in texts if token[-12:] in redact(text)] == []


@pytest.mark.parametrize("kind", ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_no_key_file_leaks(kind: str, wrapping: str) -> None:
    body = ["".join(RANDOM.choices(CHARACTERS, k=64)) for _line in range(4)]
    said = redact(WRAPPINGS[wrapping]("\n".join([f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----"])))
    assert [line for line in body if line[:20] in said or line[-20:] in said] == []


@pytest.mark.parametrize("text", NEAR)
def test_a_near_miss_survives(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("line", ["a", "A", "wandb", "shared", "token ", "a.", "://a:"])
def test_a_line_without_an_end_is_read_up_to_a_limit(line: str) -> None:
    """The time grows with the square of its length: one of 512 KiB would have taken minutes."""
    said = redact(f"x\n{line * (10**6 // len(line))}\ny")
    assert said.startswith("x\n")
    assert said.endswith(f" [{10**6 // len(line) * len(line) - LONGEST_LINE} more characters]\ny")


def test_the_end_of_a_long_line_has_no_value_whose_name_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redacting, "LONGEST_LINE", 2000)
    for number in range(1940, 2010):
        assert not leaks("x" * (number - 1) + ' {"value": "' + SECRET + '", "name": "HF_TOKEN"}')
    assert not leaks(f"{'x' * 1000}_token={SECRET}")


# ---- Redacted first, then cut.


def _roots(path: Path) -> dict[str, Path]:
    for name in ("sysfs", "etc", "proc", "lib", "group_logs"):
        (path / name).mkdir()
    return {name: path / name for name in ("sysfs", "etc", "proc", "lib", "group_logs")}


@pytest.mark.parametrize(
    "text", [f"password: {SECRET}\n", f"HF_TOKEN={SECRET} x\n", f"- name: A_KEY\n  value: {SECRET}\n"]
)
def test_no_cut_separates_a_value_from_its_name(text: str, tmp_path: Path) -> None:
    roots = _roots(tmp_path)
    log = roots["group_logs"] / "glm" / "0" / "log"
    log.parent.mkdir(parents=True)
    log.write_text(text)

    def run(_command: Sequence[str]) -> tuple[int, str, str]:
        return 0, text, ""

    found = [sources.gather(run, roots, limit)[0] for limit in range(1, len(text) + 2)]
    assert [texts for texts in found if any(part in str(texts) for part in PARTS)] == []
    assert found[-1]["group_logs"] and found[-1]["memory"]


def test_a_file_is_read_from_before_its_part_that_is_kept(tmp_path: Path) -> None:
    roots = _roots(tmp_path)
    log = roots["group_logs"] / "glm" / "0" / "log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{'A' * 100}\n" * 20_000 + "password: |\n" + f"  {SECRET}\n" * 200)
    text = sources.gather(lambda _command: (0, "", ""), roots, 1000)[0]["group_logs"]
    assert "password: <removed>" in text and SECRET not in text and len(text) < 1200


def test_a_link_in_a_pod_s_log_directory_shows_no_other_file_of_the_host(tmp_path: Path) -> None:
    """Root reads the directory, and the pod of the supervisor can write it."""
    roots, other = _roots(tmp_path), tmp_path / "root"
    other.mkdir()
    (other / "notes").write_text("of the host")
    (other / "deep").mkdir()
    (other / "deep" / "notes").write_text("of the host, too")
    group = roots["group_logs"] / "ns" / "glm"
    group.mkdir(parents=True)
    (group / "log").write_text("of the group")
    (group / "link").symlink_to(other / "notes")
    (group / "directory").symlink_to(other / "deep")
    (group / "inside").symlink_to("log")
    texts, missing = sources.gather(lambda _command: (0, "", ""), roots, 1000)
    assert texts["group_logs"].splitlines() == [f"{group}/inside: of the group", f"{group}/log: of the group"]
    assert f"{group}/link: is a link to {other}/notes" in missing["group_logs"]
    assert f"{group}/directory/notes: is a link to {other}/deep/notes" in missing["group_logs"]


# ---- Pods of others.


def _pod(namespace: str, name: str, instance: str = "") -> dict[str, Any]:
    container = {
        "name": "main", "image": "image", "command": [f"run-{name}"], "args": [f"--db=of-{name}"],
        "env": [{"name": "A", "value": f"env-{name}"}], "resources": {"limits": {"rdma/hca": f"1{name}"}},
    }  # fmt: skip
    state = {"name": "main", "restartCount": 0, "state": {"terminated": {"message": f"said-{name}"}}}
    return {
        "metadata": {
            "namespace": namespace, "name": name, "labels": {"gb10.cluster/instance": instance} if instance else {},
            "annotations": {"k8s.v1.cni.cncf.io/networks": f"net-{name}"},
        },
        "spec": {"nodeName": f"node-{name}", "containers": [container], "initContainers": [container]},
        "status": {"phase": "Running", "message": f"status-{name}", "containerStatuses": [state]},
    }  # fmt: skip


class _Api:
    def nodes(self) -> list[dict[str, Any]]:
        return []

    def all_pods(self) -> list[dict[str, Any]]:
        return [_pod("models", "glm-0", "glm"), _pod("models", "job"), _pod("kube-system", "dns"), _pod("shop", "base")]

    def events(self, namespace: str) -> list[dict[str, Any]]:
        pods = [pod["metadata"] for pod in self.all_pods() if pod["metadata"]["namespace"] == namespace]
        return [
            {"involvedObject": {"kind": "Pod", "name": pod["name"]}, "message": f"event-{pod['name']}"} for pod in pods
        ]

    def log_end(self, _space: str, name: str, *_rest: Any) -> list[str]:
        return [f"log-{name}"]


def test_of_a_foreign_pod_a_bundle_has_only_its_node_and_resources() -> None:
    found, missing = cluster.gather(cast(Cluster, _Api()), 100_000, "models")
    text = json.dumps(found)
    assert missing == {}
    for name in ("job", "base"):
        had = {
            kind
            for kind in ("run", "--db=of", "env", "said", "net", "status", "event", "log")
            if f"{kind}-{name}" in text
        }
        assert had == set(), name
        assert f"node-{name}" in text and f"1{name}" in text
    # The arguments of the system's pods are those of others, too; why they fail is not.
    assert "run-dns" not in text and "--db=of-dns" not in text
    assert all(f"{kind}-dns" in text for kind in ("said", "event", "log"))
    assert all(f"{kind}-glm-0" in text for kind in ("run", "--db=of", "said", "net", "event", "log"))
