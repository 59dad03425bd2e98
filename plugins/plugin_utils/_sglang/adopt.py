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
from itertools import takewhile
from string import Template
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .argv import parse_flags
from .catalogue import Catalogue, Parsed, key_of
from .check import Knowledge, check, serve_argv
from .facts import Facts, Setting
from .profile_checks import (
    CODE,
    CODE_FLAGS,
    OWNERS,
    REMOTE_FORMATS,
    SAMPLING,
    SECRET,
    SECRET_FLAGS,
    SECRET_VALUE,
    TOPOLOGY_FLAGS,
    release_in,
)
from .profile_files import Image, look_up
from .translate import translate

RUNNERS = frozenset({"docker", "podman", "nerdctl"})
SWITCH = re.compile(
    r"-[ditPqh]+|--(detach|init|interactive|tty|rm|rmi|privileged|read-only|replace|publish-all|quiet|no-healthcheck"
    r"|oom-kill-disable|sig-proxy|env-host|no-hosts|no-hostname|http-proxy|tls-verify|passwd|unsetenv-all)"
)
"""Options of ``docker run`` and ``podman run`` without a value; all others take the next word as their value."""

LONGEST_COMMAND = 64 * 1024
"""Characters of the longest command that is read."""
# Possessive and within a line: 8 KiB of blanks and newlines took 103 s before.
MANIFEST = re.compile(
    r"^[ \t]*+(?:-[ \t]*+)?(services|containers|image|command|entrypoint|args)[ \t]*:(\s|$)", re.MULTILINE
)
BEFORE_A_FLAG = re.compile(r"(?<!\s)\s++(?=-)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!=)")

FABRIC = re.compile(
    r"(NCCL|GLOO|TP|UCX)_(SOCKET_IFNAME|IB_HCA|IB_GID_INDEX|NET_DEVICES)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_.*"
)
"""Variables that follow from the cluster, so that the serving plan sets them."""

TYPOGRAPHY = str.maketrans("\u201c\u201d\u201e\u2018\u2019", '"""\'\'')
"""Quotes of web pages; their dashes are replaced by two hyphens."""

TEXT, MAPPING = (str, "a text"), (dict, "a mapping")
RECIPE: dict[str, tuple[type[Any], str]] = {
    **dict.fromkeys(("model", "model_revision", "container", "command"), TEXT),
    **dict.fromkeys(("defaults", "env", "metadata"), MAPPING),
    "min_nodes": (int, "a number"),
}
"""Keys of a recipe with the type that each must have, and its name."""

KNOWN_IMAGES = tuple(
    f"{name}{end}"
    for name in (
        *("lmsysorg/sglang", "docker.io/lmsysorg/sglang", "nvcr.io/nvidia/sglang"),
        *("scitrera/dgx-spark-sglang", "docker.io/scitrera/dgx-spark-sglang"),
        *("xomoxcc/dgx-spark-sglang", "docker.io/xomoxcc/dgx-spark-sglang"),
    )
    for end in (":", "@")
)
"""Images with SGLang that the profiles of the collection or NVIDIA's playbooks use."""

STEPS = frozenset({"pre_exec", "post_exec", "post_commands", "mods", "builder", "executor_config"})
OTHER = frozenset(
    {"name", "description", "runtime", "runtime_version", "recipe_version", "sparkrun_version", "mode", "max_nodes",
     "cluster_only", "solo_only", "benchmark", "stop_after_post", "executor", "scheduler", "distribution_config",
     "cluster_config", "runtime_cache", "readiness", "capabilities", "unsupported_capabilities"}
)  # fmt: skip
"""Keys of sparkrun 0.4.2 (its core/recipe.py) that change nothing of the server."""

END_OF_COMMAND = re.compile(r"[;&|<>\n]+")
UNHEEDED = re.compile(r"(?m)(?<!\S)(#.*$|[12](?=>))")
"""Comments, and the numbers of redirected streams, which would be read as values."""
ARRAY, ITS_USE = re.compile(r"(?m)^[ \t]*(\w+)=\(([^()]*)\)"), re.compile(r'"?\$\{(\w+)\[[@*]\]\}"?')
HARMLESS = frozenset(
    {"cd", "set", "source", ".", "export", "if", "then", "else", "elif", "fi", "for", "while", "do", "done", "echo",
     "sleep", "true", "trap", "mkdir", "wait"}
)  # fmt: skip
"""Commands before the server on which it doesn't depend."""


@dataclass
class Source:
    """What a command or a recipe starts, and findings about the parts that a profile can't have; ``left`` says why."""

    argv: list[str] = field(default_factory=list)
    image: str = ""
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    description: str = ""
    findings: list[Finding] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def note(self, severity: Severity, key: str, value: Any, reason: str, remedy: str) -> None:
        self.findings.append(Finding(severity, "adopt", key, value, reason, remedy))


def read_command(text: str) -> Source:
    """Read a pasted command line; raise ValueError if it doesn't start SGLang."""
    if len(text) > LONGEST_COMMAND:
        raise ValueError(
            f"the command has {len(text)} characters, of which {LONGEST_COMMAND} are read. Paste one command"
        )
    if MANIFEST.search(text):
        raise ValueError("this is a compose file or a manifest. Paste one line: docker run -e NAME=VALUE IMAGE COMMAND")
    text = re.sub(r"(?<=\s)[\u2013\u2014]-?(?=\w)", "--", text.translate(TYPOGRAPHY))
    try:
        text = UNHEEDED.sub("", re.sub(r"\\[ \t]*(#[^\n]*)?\r?\n", " ", text))
        text = ITS_USE.sub(r"$\1", ARRAY.sub(lambda found: f"{found[1]}={shlex.quote(found[2].strip())}", text))
        words = _words(BEFORE_A_FLAG.sub(lambda gap: " " if "\n" in gap[0] else gap[0], text.strip()))
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
    raise ValueError(
        "the command does not start SGLang. Paste a line with sglang.launch_server or sglang serve. Ansible ends an"
        " unquoted value at the first blank: write a longer command into a file, and give its path with -e command=FILE"
    )


def _words(text: str) -> list[str]:
    """Return the words of a command as a shell does; what separates commands are words of their own."""
    reader = shlex.shlex(text, posix=True, punctuation_chars=";&|<>\n")
    reader.whitespace, reader.whitespace_split, reader.commenters = " \t\r", True, ""
    return list(reader)


def _server(words: Sequence[str]) -> Source:
    """Return the flags of the server, up to the end of its command."""
    found = Source()
    for place, word in enumerate(words):
        if END_OF_COMMAND.fullmatch(word):
            found.note("info", "command", " ".join(words[place:]), "follows the server's flags", "Nothing to do")
            break
        if word not in ("$@", "$*"):
            found.argv.append(word)
    return found


def _started_by(words: Sequence[str], found: Source) -> Source:
    """Add what stands before the server: variables, options of a container, and other commands."""
    rest, command, named, own = list(words), list[str](), list[str](), dict[str, str]()
    while rest:
        word = rest.pop(0)
        if END_OF_COMMAND.fullmatch(word):
            if not command:  # variables of the shell alone, which the server does not see
                own |= {name: found.env.pop(name) for name in named if name in found.env}
            elif command[0] not in HARMLESS | RUNNERS:
                _step(found, command)
            command, named = [], []
        elif ASSIGNMENT.match(word):
            _variable(found, word)
            named.append(word.partition("=")[0])
        elif word.rpartition("/")[2] in RUNNERS and not found.image and {"run", "exec"} & set(_until_end(rest)):
            _container(found, rest)
        elif word not in ("env", "exec", "sudo", "nohup"):
            command.append(word)
    if "install" in command:
        _step(found, command)
    argv, found.argv = found.argv, []
    for word in argv:
        value = Template(word).safe_substitute(own | found.env)
        found.argv += shlex.split(value) if word.startswith("$") and value.startswith("-") else [value]
    return found


def _until_end(words: Sequence[str]) -> list[str]:
    return list(takewhile(lambda word: not END_OF_COMMAND.fullmatch(word), words))


def _step(found: Source, command: Sequence[str]) -> None:
    remedy = "Use an image in which it was done, or a patch of your own that does it"
    found.note("warning", "command", " ".join(command), "is a step before the server", remedy)


def _variable(found: Source, text: str) -> None:
    name, equals, value = text.partition("=")
    if CODE.fullmatch(name):
        reason = "decides which code the server loads, or from whom it downloads"
        remedy = f"Add it under env yourself, if you know why it is needed: {name}"
        found.note("warning", name, None if SECRET_VALUE.search(value) else value, reason, remedy)
    elif SECRET.search(name) or SECRET_VALUE.search(value):
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
    """Read the options of ``docker run`` up to the image; ``exec`` and ``compose`` have another name in its place."""
    left_out, inside = [], bool({"exec", "compose"} & set(rest))
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            if word in ("run", "exec", "container", "compose"):
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
    if recipe.get("model_revision"):
        found.argv += ["--revision", recipe["model_revision"]]
    for key in sorted(map(str, set(recipe) - OTHER - set(RECIPE))):
        step = key in STEPS
        reason = "is a step of sparkrun, which profiles don't have" if step else "is not read from a recipe"
        remedy = "Use an image with it" if step else "Write what it sets into the profile, or correct its name"
        found.note("warning", key, recipe.get(key), reason, remedy)
    found.image = str(recipe.get("container") or "")
    if found.image and not found.image.startswith(KNOWN_IMAGES):
        reason = "is chosen by the author of the recipe, and its programs run on your nodes with the rights of the pods"
        found.note("warning", "container", found.image, reason, "Use it if you trust its author, or give another image")
    found.nodes = int(recipe.get("min_nodes") or 0)
    found.description = str((recipe.get("metadata") or {}).get("description") or recipe.get("description") or "")
    return found


def counterparts_of(knowledge: Knowledge) -> Mapping[str, str]:
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
