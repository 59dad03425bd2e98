# Copyright: The gb10.cluster authors
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
from pathlib import Path
from string import Template
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, clip
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._controller.data import Rules, read_yaml
from .argv import parse_flags
from .catalogue import Catalogue, Parsed, key_of, translate
from .check import Knowledge, check, serve_argv
from .models import Facts, Setting
from .profile_files import (
    CODE,
    CODE_FLAGS,
    OFFICIAL,
    OWNERS,
    SAMPLING,
    SECRET,
    SECRET_FLAGS,
    SECRET_VALUE,
    TOPOLOGY_FLAGS,
    Image,
    look_up,
    name_of,
    release_in,
)

_finding = Rules("_sglang").finding

RUNNERS = frozenset({"docker", "podman", "nerdctl"})
SWITCH = re.compile(
    r"-[ditPqh]+|--(detach|init|interactive|tty|rm|rmi|privileged|read-only|replace|publish-all|quiet|no-healthcheck"
    r"|oom-kill-disable|sig-proxy|env-host|no-hosts|no-hostname|http-proxy|tls-verify|passwd|unsetenv-all)"
)
"""Options of ``docker run`` and ``podman run`` without a value; all others take the next word as their value."""

LONGEST_COMMAND = 64 * 1024
"""Characters of the longest command that is read."""
MOST_WORDS = 4096
# Possessive and within a line: 8 KiB of blanks and newlines took 103 s before.
MANIFEST = re.compile(
    r"^[ \t]*+(?:-[ \t]*+)?(services|containers|image|command|entrypoint|args)[ \t]*:(\s|$)", re.MULTILINE
)
BEFORE_A_FLAG = re.compile(r"(?<!\s)\s++(?=-)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!=)")
NAME = re.compile(r"[A-Z][A-Z0-9_]*")
SHELL = re.compile(r"\$[\w({]")
"""A value that a shell would replace."""
FLAG = re.compile(r"--[\w-]+")
MOST_FLAGS = 300
"""Flags of the longest command that is read; an unknown one takes milliseconds, because similar ones are searched."""

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


LEFT = "adopt.left"


@dataclass
class Source:
    """What a command or a recipe starts; the findings of the rule ``LEFT`` are what the profile does not have."""

    argv: list[str] = field(default_factory=list)
    image: str = ""
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    description: str = ""
    findings: list[Finding] = field(default_factory=list)

    def note(self, rule: str, value: Any, **words: Any) -> None:
        self.findings.append(_finding(rule, value, **words))

    def drop(self, rule: str, dropped: Sequence[str], **words: Any) -> None:
        """Record a part of the source that the profile does not have."""
        self.refuse(_finding(rule, None, **words), dropped)

    def refuse(self, problem: Finding, words: Sequence[str]) -> None:
        """Record a part of the source that the profile does not have because of a problem, without a secret in it."""
        key, *shown = _without_secrets([problem.key, *words])
        self.findings.append(replace(problem, rule=LEFT, key=key, value=" ".join(shown) or None))

    @property
    def left_out(self) -> list[str]:
        """Return what the profile does not have, a printable line each with the reason."""
        return [_line(finding) for finding in self.findings if finding.rule == LEFT]


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return words of a command with stars for those that are secrets, or that follow the name of one."""
    shown: list[str] = []
    follows = False
    for word in words:
        name, equals, _value = word.partition("=")
        named = SECRET.search(name) is not None
        hidden = f"{name}=***" if named and equals else word
        shown.append("***" if follows or SECRET_VALUE.search(word) else hidden)
        follows = named and not equals
    return shown


def _line(finding: Finding) -> str:
    shown = "" if finding.value is None else f"{'=' if finding.key.isupper() else ' '}{clip(finding.value, 200)}"
    remedy = "" if finding.remedy == "Nothing to do" else f". {finding.remedy}"
    text = " ".join(f"{clip(finding.key, 200)}{shown}: {finding.reason}{remedy}".split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)


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
        text = UNHEEDED.sub("", re.sub(r"\\[ \t]*+(#[^\n\\]*+)?\r?\n", " ", text))
        text = ITS_USE.sub(r"$\1", ARRAY.sub(lambda found: f"{found[1]}={shlex.quote(found[2].strip())}", text))
        words = _words(BEFORE_A_FLAG.sub(lambda gap: " " if "\n" in gap[0] else gap[0], text.strip()))
    except ValueError as problem:
        raise ValueError(f"the command can't be read: {problem}. Paste it whole, with both quotes") from problem
    if len(words) > MOST_WORDS:
        raise ValueError(f"the command has {len(words)} words, of which {MOST_WORDS} are read. Paste one command")
    if sum(word == "sglang.launch_server" for word in words) > 1:
        raise ValueError("the text starts SGLang more than once. Paste one command, that of node rank 0")
    for place, word in enumerate(words):
        if " " in word and ("sglang.launch_server" in word or "sglang serve" in word):
            inner = read_command(word)
            return _started_by(words[:place], inner)
    if words and words[0].startswith("--"):
        return Source(argv=words)
    named = False
    for place, word in enumerate(words):
        if word == "sglang.launch_server" or (word == "serve" and named):
            rest = words[place + 1 :]
            return _started_by(words[:place], _server(serve_argv(rest) if word == "serve" else rest))
        named = named or word.startswith("sglang") or word == "--entrypoint=sglang"
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
            found.drop("adopt.left/after", words[place:])
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
                found.drop("adopt.left/before", command)
            command, named = [], []
        elif ASSIGNMENT.match(word):
            _variable(found, word)
            named.append(word.partition("=")[0])
        elif word.rpartition("/")[2] in RUNNERS and not found.image and {"run", "exec"} & set(_until_end(rest)):
            _container(found, rest)
        elif word not in ("env", "exec", "sudo", "nohup"):
            command.append(word)
    if "install" in command:
        found.drop("adopt.left/before", command)
    argv, found.argv, length = found.argv, [], 0
    for word in argv:
        value = Template(word).safe_substitute(own | found.env)
        found.argv += shlex.split(value) if word.startswith("$") and value.startswith("-") else [value]
        length += len(value)
        if length > LONGEST_COMMAND:
            raise ValueError(f"with its variables the command has more than {LONGEST_COMMAND} characters. Shorten it")
    return found


def _until_end(words: Sequence[str]) -> list[str]:
    return list(takewhile(lambda word: not END_OF_COMMAND.fullmatch(word), words))


def _variable(found: Source, text: str) -> None:
    name, equals, value = text.partition("=")
    words = [value] if equals else []
    if CODE.fullmatch(name):
        found.drop("adopt.left/variable.code", words, key=name)
    elif SECRET.search(name) or SECRET_VALUE.search(value):
        found.drop("adopt.left/variable.secret", words, key=name)
    elif FABRIC.fullmatch(name):
        found.drop("adopt.left/cluster", words, key=name)
    elif not equals or SHELL.search(value):
        found.drop("adopt.left/variable.shell", words, key=name)
    elif not NAME.fullmatch(name):
        found.drop("adopt.left/variable.name", words, key=name)
    else:
        found.env[name] = value


def _container(found: Source, rest: list[str]) -> None:
    """Read the options of ``docker run`` up to the image; ``exec`` and ``compose`` have another name in its place."""
    options, inside = list[str](), bool({"exec", "compose"} & set(rest))
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
            found.drop("adopt.left/variable.file", [value], key=name)
        else:
            options += [name, value] if value else [name]
    if options:
        found.drop("adopt.left/container", options)


def read_recipe(recipe: Any, knowledge: Knowledge) -> Source:
    """Read a sparkrun recipe; raise ValueError if it is not for SGLang."""
    if not isinstance(recipe, Mapping) or not recipe.get("model"):
        raise ValueError("the recipe names no model. Give a sparkrun recipe with model, runtime and container")
    for key, (kind, name) in RECIPE.items():
        if recipe.get(key) is not None and not isinstance(recipe[key], kind):
            raise ValueError(f"the recipe's {key} is {recipe[key]!r}, which is not {name}. Correct it")
    if str(recipe.get("runtime") or "sglang") != "sglang":
        raise ValueError(f"the recipe's runtime is {recipe['runtime']!r}. This collection serves with SGLang only")
    defaults = dict(recipe.get("defaults") or {})
    command = recipe.get("command")
    if command:
        values = {"model": recipe["model"], **defaults}
        text = re.sub(r"\{(\w+)\}", lambda m: shlex.quote(str(values.get(m[1], m[0]))), str(command))
        found = read_command(text)
        for key in map(str, defaults):
            if f"{{{key}}}" not in str(command):
                found.drop("adopt.left/recipe.unused", str(defaults.get(key)).split(), key=key)
    else:
        found = Source(argv=["--model-path", str(recipe["model"]), *_flags(defaults, knowledge)])
    for place in re.findall(r"\{\w+\}", " ".join(found.argv)):
        found.note("adopt/no_value", place)
    for name, value in (recipe.get("env") or {}).items():
        _variable(found, str(name) if value is None else f"{name}={value}")
    if recipe.get("model_revision"):
        found.argv += ["--revision", recipe["model_revision"]]
    for key in sorted(map(str, set(recipe) - OTHER - set(RECIPE))):
        rule = "adopt.left/recipe.step" if key in STEPS else "adopt.left/recipe.key"
        found.drop(rule, str(recipe.get(key)).split(), key=key)
    found.image = str(recipe.get("container") or "")
    found.nodes = int(recipe.get("min_nodes") or 0)
    found.description = str((recipe.get("metadata") or {}).get("description") or recipe.get("description") or "")
    return found


def _flags(defaults: Mapping[str, Any], knowledge: Knowledge) -> list[str]:
    """Return the settings of a recipe without a command as flags."""
    words: list[str] = []
    for key, value in defaults.items():
        name = str(key).replace("_", "-")
        if value is False and knowledge.history.known(f"--no-{name}"):
            words.append(f"--no-{name}")
        elif value is not None and value is not False:
            values = value if isinstance(value, list) else [] if value is True else [value]
            words += [f"--{name}", *(json.dumps(each) if isinstance(each, dict) else str(each) for each in values)]
    return words


FOLLOWS = frozenset({"host", "port", "node_rank", "dist_init_addr", "nccl_init_addr"})
"""Settings of a rank, which the serving plan sets."""
REFUSED = ("flag.choice", "flag.type", "flag.missing_value", "flag.removed")
"""Rules of the parser by which it takes no value for a flag."""
REPLACED = ("argparse.abbrev", "flag.repeated", *REFUSED)
"""Rules of the parser whose findings are said as what is left out, or that the profile's own spelling mends."""
ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/([^/\s]+/[^/\s?#]+)\S*")
"""A model's page on the hub, of which the name of the repository is a part."""


def repository(text: str) -> str:
    """Return a repository that may be given as the address of its page."""
    found = ADDRESS.fullmatch(text.strip())
    return found[1].removesuffix(".git") if found else text.strip()


def to_profile(
    found: Source,
    knowledge: Knowledge,
    name: str,
    facts: Mapping[str, Any],
    fallback: Mapping[str, str],
    images: Sequence[Image] = (),
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the profile that does the same, and findings about everything that it does not have.

    ``facts`` are those of the model's config.json, ``fallback`` the repo, sglang_version and image that the user gave,
    empty ones too, ``images`` those of all profiles. A flag with another name in the release gets that name. Raises
    ValueError if nothing says the release, or if there are more flags than anybody writes.
    """
    if sum(word.startswith("--") for word in found.argv) > MOST_FLAGS or len(found.argv) > MOST_WORDS:
        raise ValueError(
            f"the source has more than {MOST_FLAGS} flags or {MOST_WORDS} words. Give one server's command"
        )
    image, version = _image(found, fallback, images, knowledge)
    listed = look_up(images, image)
    carries = listed.carries if listed and listed.sglang == version else ()
    catalogue = knowledge.history.nearest(Version.parse(version))[0].with_fork(carries)
    parsed = parse_flags(catalogue, knowledge.history, _in_release(found, catalogue, knowledge, version))
    entry = {"sglang": version, "image": image} | ({"carries": list(carries)} if carries else {})
    given = _settings(found, parsed)
    unknown = [one.key for one in found.findings if (one.rule, one.severity) == (LEFT, "error") and "-" in one.key]
    if unknown and listed is None and name_of(image) not in OFFICIAL:
        found.note("adopt/fork", image, flags=", ".join(unknown), version=version)
    return _profile(found, given, entry, name, facts, fallback["repo"]), found.findings


def _image(
    found: Source, fallback: Mapping[str, str], images: Sequence[Image], knowledge: Knowledge
) -> tuple[str, str]:
    """Return the image and its release; raise ValueError if the user has to say the release."""
    image, asked = found.image or fallback["image"], fallback["sglang_version"]
    if SECRET_VALUE.search(image):
        raise ValueError("the name of the image has a secret. Leave it out, and log in to the registry on the nodes")
    if not image:
        fits = [one for one in images if one.digest and (one.sglang == asked or not (asked or one.profile))]
        best = max(fits, key=lambda one: (Version.parse(one.sglang), not one.profile), default=None)
        if best is None and not asked:
            raise ValueError("nothing says which SGLang to use. Give -e profile_new_sglang_version=RELEASE")
        image = best.reference if best else f"docker.io/{OFFICIAL[0]}:v{asked}"
        known = (
            (best.describe("gb10") or f"an image of the profile {best.profile}") if best else "nothing is known of it"
        )
        found.note("adopt/image.chosen", image, known=known)
    listed, tagged = look_up(images, image), Version.find(release_in(image))
    newest = knowledge.history.catalogues[-1].version
    told = listed.sglang if listed else release_in(image) if tagged and tagged.release[0] == newest.release[0] else ""
    if not told and not asked:
        raise ValueError(
            f"the image {image} does not say which SGLang it contains. Give -e profile_new_sglang_version=RELEASE;"
            f" docker run --rm {image} python3 -c 'import sglang; print(sglang.__version__)' prints it"
        )
    if listed and asked and asked != listed.sglang:
        said = {"contains": listed.sglang, "listed": listed.profile or "images.json", "asked": asked}
        found.note("adopt/image.release", image, **said)
    if not listed and name_of(image) not in OFFICIAL:
        found.note("adopt/image.foreign", image)
    return listed.reference if listed and "@" not in image else image, asked or told


def _in_release(found: Source, catalogue: Catalogue, knowledge: Knowledge, version: str) -> list[str]:
    """Return the flags in the release's spelling, without those that it does not have."""
    history = knowledge.history
    counterparts = next(rule.flags for rule in knowledge.rules.rules if rule.id == "name.vllm")
    parsed = parse_flags(catalogue, history, found.argv)
    said = {finding.key: finding for finding in parsed.findings}
    words: list[str] = []
    for item in parsed.items:
        if item.flag is not None:
            words += item.argv
            continue
        other = counterparts.get(item.option, "")
        if FLAG.fullmatch(other):
            found.note("adopt/vllm", None, key=item.option, other=other)
        named = replace(item, option=other) if FLAG.fullmatch(other) else item
        done, notes = translate([named], catalogue, history)
        if any(note.severity == "error" for note in notes):
            problem = said[item.written]
            found.refuse(replace(problem, remedy=f"SGLang has {other}") if other else problem, item.words)
        elif not done:
            found.refuse(replace(notes[0], reason=notes[0].reason.removeprefix("left out: ")), item.words)
        else:
            found.findings += notes
        words += [word for one in done if one.option in catalogue.options for word in one.argv]
    for finding in parsed.findings:
        if finding.rule in ("flag.positional", "flag.help", "flag.unexpected_value"):
            found.refuse(finding, [str(finding.value)] if finding.value else [])
    judged = check(knowledge, version, found.argv, Facts(), Setting()).findings
    found.findings += [finding for finding in judged if finding.rule == "name.quantization"]
    unknown = {item.written for item in parsed.items if item.flag is None}
    found.findings += [one for one in parsed.findings if one.rule == "flag.renamed" and one.key not in unknown]
    return words


def _settings(found: Source, parsed: Parsed) -> dict[str, Any]:
    """Return the settings that the profile keeps, by their keys."""
    refused = {finding.key: finding for finding in parsed.findings if finding.rule in REFUSED}
    last = {item.flag.name: place for place, item in enumerate(parsed.items) if item.flag}
    given: dict[str, Any] = {}
    for place, item in enumerate(parsed.items):
        if item.flag is None:
            continue
        key, value = key_of(item.flag.name), parsed.stored.get(item.flag.dest)
        problem = refused.get(item.option)
        if key in FOLLOWS:
            found.drop("adopt.left/cluster", item.words, key=item.option)
        elif key in SECRET_FLAGS or any(SECRET_VALUE.search(word) for word in item.words):
            found.drop("adopt.left/flag.secret", ["***"], key=item.option)
        elif any(SHELL.search(word) for word in item.words):
            found.drop("adopt.left/flag.shell", item.words, key=item.option)
        elif last[item.flag.name] != place:
            found.drop("adopt.left/flag.again", item.words, key=item.option)
        elif key in CODE_FLAGS and value in (CODE_FLAGS[key] or (value,)):
            found.drop("adopt.left/flag.code", item.words, key=item.option, name=key)
        elif problem is not None:
            found.refuse(problem, item.words)
        elif item.flag.dest not in parsed.stored:
            found.drop("adopt.left/flag.no_effect", item.words, key=item.option)
        else:
            given[key] = not item.option.startswith("--no-") if item.flag.is_switch else value
    left = {finding.key for finding in found.findings if finding.rule == LEFT}
    found.findings += [one for one in parsed.findings if one.rule not in REPLACED and one.key not in left]
    return given


def _profile(
    found: Source,
    given: Mapping[str, Any],
    image: Mapping[str, Any],
    name: str,
    facts: Mapping[str, Any],
    wanted: str,
) -> dict[str, Any]:
    tp, pp, ep = (next((int(given[n]) for n in TOPOLOGY_FLAGS[size] if n in given), 1) for size in ("tp", "pp", "ep"))
    nodes = int(given.get("nnodes") or 0) or found.nodes or tp * pp
    if nodes != tp * pp:
        found.note("adopt/nodes", nodes, tp=tp, pp=pp, gpus=tp * pp)
    path = str(given.get("model_path") or "")
    repo = repository(wanted or path or name)
    if wanted and path and repository(path) != repo:
        found.drop("adopt.left/model", [path])
    elif path.startswith(("/", ".", "~")) and not wanted:
        repo = path.rstrip("/").rpartition("/")[2].replace("--", "/", 1)
        found.note("adopt/directory", path, repo=repo)
    model = {"repo": repo, "revision": given.get("revision"), "arch": facts.get("architecture")}
    model |= {key: facts.get(key) for key in ("quantization", "max_context", "weights_gb")}
    if given.get("trust_remote_code") and not given.get("revision"):
        found.note("adopt/code", True)
    args = {key: value for key, value in given.items() if key not in OWNERS}
    sampling = args.pop(SAMPLING, None)
    profile: dict[str, Any] = {
        "name": name,
        "description": " ".join(_without_secrets(found.description.split())) or f"{repo} on {nodes} node(s)",
        "model": {key: value for key, value in model.items() if value is not None},
        "sglang_version": image["sglang"],
        "images": [dict(image)],
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
        found.drop("adopt.left/sampling", [str(sampling)], key=SAMPLING)
    return profile


def commented(profile: Mapping[str, Any], missing: Sequence[str]) -> str:
    """Return a profile as YAML with a comment for each key, and with what it does not have of its source."""
    lines = ["---", "# docs/profiles.md describes every key."]
    if missing:
        lines += ["# Left out of the source, because:", *(f"#   {line}" for line in missing)]
    for key, (comment, example) in read_yaml(Path(__file__).with_name("keys.yml")).items():
        parent, _dot, name = key.rpartition(".")
        indent, holder = ("  ", profile.get(parent) or {}) if parent else ("", profile)
        if parent and name in holder:
            continue
        lines += [f"{indent}# {comment}"] if comment else []
        if name in holder:
            value = json.loads(json.dumps({name: holder[name]}))  # PyYAML writes plain strings only
            lines.append(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120).rstrip())
        else:
            lines.append(f"{indent}# {name}: {example}")
    return "\n".join(lines) + "\n"
