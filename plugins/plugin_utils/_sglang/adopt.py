# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a command that starts SGLang, or a sparkrun recipe, to a profile that does the same.

Private to the collection.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .argv import parse_flags
from .check import Knowledge, check, serve_argv
from .items import key_of
from .owned import OWNERS, SECRET, SECRET_FLAGS, TOPOLOGY_FLAGS
from .profile_checks import SAMPLING
from .rules import Facts, Setting

RUNNERS = frozenset({"docker", "podman", "nerdctl"})
SWITCH = re.compile(
    r"-[ditPqh]+|--(detach|init|interactive|tty|rm|rmi|privileged|read-only|replace|publish-all|quiet|no-healthcheck"
    r"|oom-kill-disable|sig-proxy|env-host|no-hosts|no-hostname|http-proxy|tls-verify|passwd|unsetenv-all)"
)
"""Options of ``docker run`` and ``podman run`` without a value; all others take the next word as their value."""

MANIFEST = re.compile(r"^\s*-?\s*(services|containers|image|command|entrypoint|args)\s*:(\s|$)", re.MULTILINE)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!=)")

FABRIC = re.compile(
    r"(NCCL|GLOO|TP|UCX)_(SOCKET_IFNAME|IB_HCA|IB_GID_INDEX|NET_DEVICES)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_.*"
)
"""Variables that follow from the cluster, so that the serving plan sets them."""

TYPOGRAPHY = str.maketrans("\u201c\u201d\u201e\u2018\u2019", '"""\'\'')
"""Quotes of web pages; their dashes are replaced by two hyphens."""

TEXT, MAPPING = (str, "a text"), (dict, "a mapping")
RECIPE: dict[str, tuple[type[Any], str]] = {
    **dict.fromkeys(("model", "container", "command"), TEXT),
    **dict.fromkeys(("defaults", "env", "metadata"), MAPPING),
    "min_nodes": (int, "a number"),
}
"""Keys of a recipe with the type that each must have, and its name."""

RELEASE = re.compile(r"\d+\.\d+\.\d+([.-]?(post|rc|dev)\d*)?")
END_OF_COMMAND = re.compile(r"[;&|<>]+")


@dataclass
class Source:
    """What a command or a recipe starts, and findings about the parts that a profile can't have."""

    argv: list[str] = field(default_factory=list)
    image: str = ""
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    description: str = ""
    findings: list[Finding] = field(default_factory=list)

    def note(self, severity: Severity, key: str, value: Any, reason: str, remedy: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(severity, "adopt", key, value, reason, remedy))


def read_command(text: str) -> Source:
    """Read a pasted command line; raise ValueError if it doesn't start SGLang."""
    if MANIFEST.search(text):
        raise ValueError("this is a compose file or a manifest. Paste one line: docker run -e NAME=VALUE IMAGE COMMAND")
    text = re.sub(r"(?<=\s)[\u2013\u2014](?=\w)", "--", text.translate(TYPOGRAPHY))
    try:
        words = _words(re.sub(r"\\[ \t]*\r?\n", " ", text))
    except ValueError as problem:
        raise ValueError(f"the command can't be read: {problem}. Paste it whole, with both quotes") from problem
    if sum(word == "sglang.launch_server" for word in words) > 1:
        raise ValueError("the text starts SGLang more than once. Paste one command, that of node rank 0")
    for place, word in enumerate(words):
        if " " in word and ("sglang.launch_server" in word or "sglang serve" in word):
            inner = read_command(word)
            return _started_by(words[:place], inner)
    if words and words[0].startswith("--"):
        return Source(argv=words)
    for place, word in enumerate(words):
        before = [part for part in words[:place] if part.startswith("sglang") or part == "--entrypoint=sglang"]
        if word == "sglang.launch_server" or (word == "serve" and before):
            rest = words[place + 1 :]
            return _started_by(words[:place], _server(serve_argv(rest) if word == "serve" else rest))
    raise ValueError("the command does not start SGLang. Paste a line with sglang.launch_server or sglang serve")


def _words(text: str) -> list[str]:
    """Return the words of a command as a shell does; what separates commands are words of their own."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    reader.whitespace_split = True
    return list(reader)


def _server(words: Sequence[str]) -> Source:
    """Return the flags of the server, up to the end of its command."""
    found = Source()
    for place, word in enumerate(words):
        if END_OF_COMMAND.fullmatch(word):
            found.note("info", "command", " ".join(words[place:]), "follows the server's flags", "Nothing to do")
            if ">" in word and found.argv and found.argv[-1] in ("1", "2"):
                found.argv.pop()
            break
        found.argv.append(word)
    return found


def _started_by(words: Sequence[str], found: Source) -> Source:
    """Add what stands before the server: variables, options of a container, and other commands."""
    rest, command = list(words), list[str]()
    while rest:
        word = rest.pop(0)
        if END_OF_COMMAND.fullmatch(word):
            if command and command[0] not in ("cd", "set", "source", "."):
                _step(found, command)
            command = []
        elif ASSIGNMENT.match(word):
            _variable(found, word)
        elif word in RUNNERS and not found.image:
            _container(found, rest)
        elif word not in ("export", "env", "exec", "sudo", "nohup"):
            command.append(word)
    if "install" in command:
        _step(found, command)
    return found


def _step(found: Source, command: Sequence[str]) -> None:
    remedy = "Use an image in which it was done, or a patch of your own that does it"
    found.note("warning", "command", " ".join(command), "is a step before the server", remedy)


def _variable(found: Source, text: str) -> None:
    name, equals, value = text.partition("=")
    if SECRET.search(name):
        remedy = "Give the token with sglang_hf_token, or the key with gateway_api_key, from your vault"
        found.note("warning", name, None, "is a secret, which a profile must not contain", remedy)
    elif FABRIC.fullmatch(name):
        found.note("info", name, value, "follows from the cluster: the serving plan sets it", "Nothing to do")
    elif not equals or "$" in value:
        remedy = f"Add it under env with its value, if it is needed: {name}"
        found.note("warning", name, value or None, "gets its value from your shell, which is unknown here", remedy)
    else:
        found.env[name] = value


def _container(found: Source, rest: list[str]) -> None:
    """Read the options of ``docker run`` up to the image; ``docker exec`` names a container there."""
    left_out, inside = [], rest[:1] == ["exec"]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if word in ("run", "exec", "container"):
                continue
            found.image = "" if inside else word
            break
        if not word.startswith("--") and not SWITCH.fullmatch(word) and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        elif not equals and not SWITCH.fullmatch(name) and rest:
            value = rest.pop(0)
        if name in ("-e", "--env"):
            _variable(found, value)
        elif name == "--env-file":
            reason = "has variables that were not read"
            found.note("warning", name, value, reason, "Add those that the server needs under env")
        else:
            left_out.append(f"{name} {value}".strip())
    if left_out:
        reason = "are options of the container, which the collection chooses itself (devices, memory, network, models)"
        found.note("info", "docker", ", ".join(left_out), reason, "Nothing to do, unless a mount has files of yours")


def read_recipe(recipe: Any, knowledge: Knowledge) -> Source:
    """Read a sparkrun recipe; raise ValueError if it is not for SGLang."""
    if not isinstance(recipe, Mapping) or not recipe.get("model"):
        raise ValueError("the recipe names no model. Give a sparkrun recipe with model, runtime and container")
    for key, (kind, name) in RECIPE.items():
        if recipe.get(key) is not None and not isinstance(recipe[key], kind):
            raise ValueError(f"the recipe's {key} is {recipe[key]!r}, which is not {name}. Correct it")
    if str(recipe.get("runtime") or "sglang") != "sglang":
        raise ValueError(f"the recipe's runtime is {recipe['runtime']}. This collection serves with SGLang only")
    defaults = dict(recipe.get("defaults") or {})
    command = recipe.get("command")
    if command:
        values = {"model": recipe["model"], **defaults}
        text = re.sub(r"\{(\w+)\}", lambda m: shlex.quote(str(values.get(m[1], m[0]))), str(command))
        found = read_command(text)
    else:
        found = Source(argv=["--model-path", str(recipe["model"]), *_flags(defaults, knowledge)])
    for place in re.findall(r"\{\w+\}", " ".join(found.argv)):
        found.note("error", "command", place, "has no value under defaults", "Write its value into the profile")
    for name, value in (recipe.get("env") or {}).items():
        _variable(found, str(name) if value is None else f"{name}={value}")
    for key in sorted({"pre_exec", "post_exec", "post_commands", "mods", "builder", "executor_config"} & set(recipe)):
        reason = "is a step of sparkrun, which profiles don't have"
        found.note("warning", key, recipe[key], reason, "Use an image with it")
    found.image = str(recipe.get("container") or "")
    found.nodes = int(recipe.get("min_nodes") or 0)
    found.description = str((recipe.get("metadata") or {}).get("description") or recipe.get("description") or "")
    return found


def counterparts_of(knowledge: Knowledge) -> Mapping[str, str]:
    """Return SGLang's counterparts of vLLM's flags."""
    return next(rule.flags for rule in knowledge.rules.rules if rule.id == "name.vllm")


def _flags(defaults: Mapping[str, Any], knowledge: Knowledge) -> list[str]:
    """Return the settings of a recipe without a command as flags; sparkrun names some of them as vLLM does."""
    counterparts = counterparts_of(knowledge)
    words: list[str] = []
    for key, value in defaults.items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is not None and value is not False:
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [counterparts.get(flag) or flag, *(str(each) for each in values)]
    return words


def to_profile(
    found: Source, knowledge: Knowledge, name: str, facts: Mapping[str, Any], fallback: Mapping[str, str]
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the profile that does the same, and findings about everything that it does not have.

    ``facts`` are those of the model's config.json, ``fallback`` the repo, sglang_version and image for what the source
    does not say.
    """
    tagged = RELEASE.search(found.image.partition("@")[0].rpartition(":")[2])
    version = tagged[0] if tagged else fallback["sglang_version"]
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
        if finding.rule != "argparse.abbrev":
            other = replace(finding, remedy=f"SGLang has {known}") if known else finding
            found.findings.append(named.get(finding.key, other))
    given: dict[str, Any] = {}
    for item in parsed.items:
        if item.flag is None:
            continue
        if any("$" in word for word in item.words):
            reason = "gets its value from your shell, which is unknown here"
            found.note("error", item.option, " ".join(item.words), reason, "Write its value into the profile")
        elif item.flag.dest in parsed.stored:
            value = parsed.stored[item.flag.dest]
            given[key_of(item.flag.name)] = not item.option.startswith("--no-") if item.flag.is_switch else value
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
    for key in sorted({"host", "port", "node_rank", "dist_init_addr"} & set(given)):
        found.note("info", key, given[key], "follows from the cluster: the serving plan sets it", "Nothing to do")
    model = {"repo": repo, "revision": given.get("revision"), "arch": facts.get("architecture")}
    model |= {key: facts.get(key) for key in ("quantization", "max_context", "weights_gb")}
    for key in sorted(set(SECRET_FLAGS) & set(given)):
        remedy = "Give the key with gateway_api_key from your vault"
        found.note("warning", key, None, "is a secret, which a profile must not contain", remedy)
    args = {key: value for key, value in given.items() if key not in (*OWNERS, *SECRET_FLAGS)}
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
