# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a command that starts SGLang, or a sparkrun recipe, to a profile that does the same.

Private to the collection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .argv import parse_flags
from .check import Knowledge, check
from .facts import Facts, Setting
from .items import key_of
from .owned import CODE_FLAGS, OWNERS, REMOTE_FORMATS, SECRET_FLAGS, TOPOLOGY_FLAGS
from .profile_checks import SAMPLING, release_in
from .sources import Source, counterparts_of

FOLLOWS = frozenset({"host", "port", "node_rank", "dist_init_addr"})
"""Settings of a rank, which the serving plan sets."""


def to_profile(
    found: Source, knowledge: Knowledge, name: str, facts: Mapping[str, Any], fallback: Mapping[str, str]
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the profile that does the same, and findings about everything that it does not have.

    ``facts`` are those of the model's config.json, ``fallback`` the repo, sglang_version and image for what the source
    does not say.
    """
    tagged = release_in(found.image)
    version = tagged or fallback["sglang_version"]
    if not tagged:
        reason = f"does not say which SGLang it contains; {version} is assumed"
        found.note("warning", "image", found.image or None, reason, "Correct sglang_version if it is another one")
    catalogue = knowledge.history.nearest(Version.parse(version))[0]
    parsed = parse_flags(catalogue, knowledge.history, found.argv)
    counterparts = counterparts_of(knowledge)
    told = check(knowledge, version, found.argv, Facts(), Setting()).findings
    named = {finding.key: finding for finding in told if finding.rule == "name.quantization"}
    for finding in parsed.findings:
        known = counterparts.get(finding.key) if finding.rule == "flag.unknown" else None
        if finding.rule != "argparse.abbrev" and "$" not in str(finding.value):
            other = replace(finding, remedy=f"SGLang has {known}") if known else finding
            found.findings.append(named.get(finding.key, other))
    given: dict[str, Any] = {}
    for item in parsed.items:
        if item.flag is None:
            continue
        key = key_of(item.flag.name)
        if key in FOLLOWS:
            found.note("info", key, item.words, "follows from the cluster: the serving plan sets it", "Nothing to do")
        elif any("$" in word for word in item.words):
            reason = "gets its value from your shell, which is unknown here"
            found.note("error", item.option, " ".join(item.words), reason, "Write its value into the profile")
        elif item.flag.dest in parsed.stored:
            value = parsed.stored[item.flag.dest]
            given[key] = not item.option.startswith("--no-") if item.flag.is_switch else value
    return _profile(found, given, version, name, facts, fallback), found.findings


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
    repo = fallback["repo"] or path or name
    if path.startswith(("/", ".", "~")) and not fallback["repo"]:
        repo = path.rstrip("/").rpartition("/")[2].replace("--", "/", 1)
        reason = f"is a directory; {repo} is assumed to be its repository"
        found.note("warning", "model_path", path, reason, "Set model.repo to the repository that model_stage downloads")
    model = {"repo": repo, "revision": given.get("revision"), "arch": facts.get("architecture")}
    model |= {key: facts.get(key) for key in ("quantization", "max_context", "weights_gb")}
    for key in sorted(set(SECRET_FLAGS) & set(given)):
        remedy = "Give the key with gateway_api_key from your vault"
        found.note("warning", key, None, "is a secret, which a profile must not contain", remedy)
    dropped = [key for key in CODE_FLAGS if given.get(key)]
    dropped += ["load_format"] if given.get("load_format") in REMOTE_FORMATS else []
    for key in dropped:
        remedy = f"Add it under server_args yourself, if you know why it is needed: {key}"
        found.note("warning", key, given[key], "lets somebody else choose code or weights of the server", remedy)
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
