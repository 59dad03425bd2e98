# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a pasted command, or a sparkrun recipe, starts. Private to the collection."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from string import Template
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .check import Knowledge, serve_argv
from .owned import CODE, SECRET, SECRET_VALUE

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
