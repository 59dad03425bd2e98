# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a command that starts SGLang, or a sparkrun recipe, to a profile that does the same.

Private to the collection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .argv import parse_flags
from .catalogue import Catalogue
from .check import Knowledge, check
from .facts import Facts, Setting
from .images import Image, look_up
from .items import Parsed, key_of
from .owned import CODE_FLAGS, OWNERS, REMOTE_FORMATS, SECRET_FLAGS, TOPOLOGY_FLAGS
from .profile_checks import SAMPLING, release_in
from .sources import Source, counterparts_of
from .translate import translate

FOLLOWS = frozenset({"host", "port", "node_rank", "dist_init_addr", "nccl_init_addr"})
"""Settings of a rank, which the serving plan sets."""


ADDRESS = re.compile(r"https?://(?:www\.)?huggingface\.co/([^/\s]+/[^/\s?#]+)\S*")
"""A model's page on the hub, of which the name of the repository is a part."""


def repository(text: str) -> str:
    """Return a repository that may be given as the address of its page."""
    return ADDRESS.sub(r"\1", text.strip())


def left_out(found: Source) -> list[str]:
    """Return what the profile does not have of the source, each with the reason."""
    return [f"{what}: {why}" for what, why in found.left.items()]


def to_profile(
    found: Source,
    knowledge: Knowledge,
    name: str,
    facts: Mapping[str, Any],
    fallback: Mapping[str, str],
    images: Sequence[Image] = (),
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the profile that does the same, and findings about everything that it does not have.

    ``facts`` are those of the model's config.json, ``fallback`` the repo, sglang_version and image for what the source
    does not say, ``images`` those of all profiles. A flag with another name in the release gets that name.
    """
    listed = look_up(images, found.image)
    told = listed.sglang if listed else release_in(found.image)
    version = told or fallback["sglang_version"]
    if not told:
        reason = f"does not say which SGLang it contains; {version} is assumed"
        remedy = "Correct sglang_version if it is another one, or give -e profile_new_sglang_version=RELEASE"
        found.note("warning", "image", found.image or None, reason, remedy)
    catalogue = knowledge.history.nearest(Version.parse(version))[0].with_fork(listed.carries if listed else ())
    parsed = _in_release(parse_flags(catalogue, knowledge.history, found.argv), catalogue, knowledge)
    counterparts = counterparts_of(knowledge)
    judged = check(knowledge, version, found.argv, Facts(), Setting()).findings
    named = {finding.key: finding for finding in judged if finding.rule == "name.quantization"}
    why = {finding.key: finding.reason for finding in parsed.findings if finding.severity == "error"}
    for finding in parsed.findings:
        known = counterparts.get(finding.key) if finding.rule == "flag.unknown" else None
        if finding.rule != "argparse.abbrev" and "$" not in str(finding.value):
            other = replace(finding, remedy=f"SGLang has {known}") if known else finding
            found.findings.append(named.get(finding.key, other))
    given: dict[str, Any] = {}
    for item in parsed.items:
        key, shown = key_of(item.flag.name if item.flag else item.option), " ".join(item.argv)
        if item.flag is None:
            found.left[shown] = why.get(item.written, "SGLang does not have it")
        elif key in FOLLOWS:
            found.note("info", key, item.words, "follows from the cluster: the serving plan sets it", "Nothing to do")
            found.left[shown] = "follows from the cluster: the serving plan sets it"
        elif any("$" in word for word in item.words):
            reason = "gets its value from your shell, which is unknown here"
            found.note("error", item.option, " ".join(item.words), reason, "Write its value into the profile")
            found.left[shown] = reason
        elif item.flag.dest in parsed.stored:
            value = parsed.stored[item.flag.dest]
            given[key] = not item.option.startswith("--no-") if item.flag.is_switch else value
        else:
            found.left[shown] = why.get(item.option, "the release refuses its value")
    for finding in parsed.findings:
        if finding.rule == "flag.positional":
            found.left[finding.key] = finding.reason
    profile = _profile(found, given, version, name, facts, fallback)
    if listed and listed.carries:
        profile["images"][0]["carries"] = list(listed.carries)
    return profile, found.findings


def _in_release(parsed: Parsed, catalogue: Catalogue, knowledge: Knowledge) -> Parsed:
    """Return the command line with flags of other releases in this release's spelling, where it has one."""
    words: list[str] = []
    for item in parsed.items:
        done, notes = translate([item], catalogue, knowledge.history) if item.flag is None else ([item], [])
        refused = any(note.severity == "error" for note in notes)
        words += [word for one in ([item] if refused else done) for word in one.argv]
    if all(item.flag is not None for item in parsed.items):
        return parsed
    meant = parse_flags(catalogue, knowledge.history, words)
    positional = [finding for finding in parsed.findings if finding.rule == "flag.positional"]
    return replace(meant, findings=[*meant.findings, *positional])


def _profile(
    found: Source,
    given: Mapping[str, Any],
    version: str,
    name: str,
    facts: Mapping[str, Any],
    fallback: Mapping[str, str],
) -> dict[str, Any]:
    tp, pp, ep = (next((int(given[n]) for n in TOPOLOGY_FLAGS[size] if n in given), 1) for size in ("tp", "pp", "ep"))
    nodes = int(given.get("nnodes") or 0) or found.nodes or tp * pp
    if nodes != tp * pp:
        reason = f"tp {tp} x pp {pp} = {tp * pp} GPUs; a DGX Spark has one"
        found.note("warning", "nodes", nodes, reason, "Set topology so that tp x pp is the number of nodes")
    path = str(given.get("model_path") or "")
    repo = repository(fallback["repo"] or path or name)
    if path.startswith(("/", ".", "~")) and not fallback["repo"]:
        repo = path.rstrip("/").rpartition("/")[2].replace("--", "/", 1)
        reason = f"is a directory; {repo} is assumed to be its repository"
        found.note("warning", "model_path", path, reason, "Set model.repo to the repository that model_stage downloads")
    model = {"repo": repo, "revision": given.get("revision"), "arch": facts.get("architecture")}
    model |= {key: facts.get(key) for key in ("quantization", "max_context", "weights_gb")}
    for key in sorted(set(SECRET_FLAGS) & set(given)):
        remedy = "Give the key with gateway_api_key from your vault"
        found.note("warning", key, None, "is a secret, which a profile must not contain", remedy)
        _forget(found, key, "is a secret")
    dropped = [key for key in CODE_FLAGS if given.get(key)]
    dropped += ["load_format"] if given.get("load_format") in REMOTE_FORMATS else []
    for key in dropped:
        remedy = f"Add it under server_args yourself, if you know why it is needed: {key}"
        found.note("warning", key, given[key], "lets somebody else choose code or weights of the server", remedy)
        _forget(found, key, "lets somebody else choose code or weights of the server")
    if given.get("trust_remote_code") and not given.get("revision"):
        reason = "runs the code of the model's repository, which can change at any time without a revision"
        found.note("warning", "trust_remote_code", True, reason, "Set model.revision to a commit that you have read")
    args = {key: value for key, value in given.items() if key not in (*OWNERS, *SECRET_FLAGS, *dropped)}
    sampling = args.pop(SAMPLING, None)
    profile: dict[str, Any] = {
        "name": name,
        "description": found.description or f"{repo} on {nodes} node(s)",
        "model": {key: value for key, value in model.items() if value is not None},
        "sglang_version": version,
        "images": [{"sglang": version, "image": found.image or fallback["image"]}],
        "topology": {"nodes": nodes, "tp": tp, "pp": pp, "ep": ep},
        "server_args": args,
        "env": dict(found.env),
        "status": "untested",
        "default_preset": "baseline",
        "presets": {"baseline": {"description": "The settings that were given"}},
    }
    sampling = json.loads(sampling) if isinstance(sampling, str) else sampling
    if isinstance(sampling, Mapping):
        profile["sampling"] = dict(sampling)
    elif sampling is not None:
        found.note("error", SAMPLING, sampling, "is not a JSON object", "Write the parameters under sampling")
    return profile


def _forget(found: Source, key: str, why: str) -> None:
    """Record a setting that the profile must not have, without its value."""
    found.left[f"--{key.replace('_', '-')}"] = why


COMMENTS = {
    "model": "organisation/name on the hub; revision: branch, tag or commit, without which it is the newest",
    "sglang_version": "the release for which the flags are written; for other releases they are translated",
    "images": "pin the image by its digest (name@sha256:...) as soon as you know it",
    "topology": "tp x pp is the number of GPUs of all nodes; ep spreads the experts of a MoE model and must divide tp",
    "server_args": "flags of sglang.launch_server with underscores, without parallel sizes, addresses and ports",
    "env": "environment variables of the server; write numbers in quotes",
    "status": "untested, measured or broken; the last two need a source",
    "presets": "a preset changes the profile for one purpose; mappings are merged, and null removes a key",
}
"""What is written above each key of an imported profile."""


def commented(text: str, missing: Sequence[str]) -> str:
    """Return a profile with a comment above each key, and with what it does not have of its source."""
    head = ["# docs/profiles.md describes every key."]
    if missing:
        head += ["# Left out of the source, because:", *(f"#   {' '.join(line.split())}" for line in missing)]
    lines = []
    for line in text.splitlines():
        if comment := COMMENTS.get(line.partition(":")[0]):
            lines.append(f"# {comment}")
        lines.append(line)
    return "\n".join(["---", *head, *lines]) + "\n"
