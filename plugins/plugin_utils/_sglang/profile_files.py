# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and read profiles on the controller, first in the user's directories, then in the collection's.

Private to the collection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._controller.data import PROFILES, Rules
from .schema import INSTALL_AGAIN, BrokenInstallation, load_schema, violations

_finding = Rules("_sglang").finding

# Check the parts of a profile that are not flags: image, status, hardware, sampling and overrides.

TOPOLOGY_FLAGS: dict[str, tuple[str, ...]] = {
    "tp": ("tp_size", "tensor_parallel_size", "tp"),
    "pp": ("pp_size", "pipeline_parallel_size", "pp"),
    "ep": ("ep_size", "expert_parallel_size", "ep"),
    "nodes": ("nnodes", "node_rank", "dist_init_addr", "nccl_init_addr"),
}
"""Settings that belong under topology, because ranks and addresses follow from the cluster."""

OWNERS = {name: f"topology.{key}" for key, names in TOPOLOGY_FLAGS.items() for name in names} | {
    "model_path": "model.repo",
    "model": "model.repo",
    "revision": "model.revision",
    "host": "the serving plan",
    "port": "the serving plan",
}
"""Every owned setting in every spelling of the releases with a catalogue, with the place that its value comes from."""

SECRET_FLAGS = ("api_key", "admin_api_key", "ssl_keyfile_password")
SECRET = re.compile(r"(_TOK|TOKEN)\d*$|SECRET|PASSW|(?<!BY)PASS$|_(PW|PAT|AUTH)$|PWD$|CREDENTIAL|KEY$", re.IGNORECASE)
"""Settings, and names of variables, that are secrets."""
SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|\b(hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[a-z]-|nvapi-|AKIA|eyJ)[\w-]{12,}|PRIVATE KEY-"
)
"""Values that are secrets under any name: an address with a password, tokens of vendors, a key file."""
CODE = re.compile(
    r"LD_\w+|PYTHON(?!UNBUFFERED$|HASHSEED$|FAULTHANDLER$)\w*|PATH|BASH_ENV|ENV|IFS|SHELL|CC|CXX|NVCC|PIP_\w+|GCONV_PATH"
    r"|HF_(ENDPOINT|HOME|MODULES_CACHE)|HUGGINGFACE_\w+|GIT_\w+|NCCL_\w*PLUGIN|NCCL_CONF_FILE|CUDA_INJECTION64_PATH"
    r"|SGLANG_EXTERNAL_\w+|SGLANG_PLUGINS?|SGLANG_USE_MODELSCOPE|MODELSCOPE_\w+|DUMPER_\w+|GLIBC_TUNABLES"
    r"|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE",
    re.IGNORECASE,
)
"""Variables that decide which code a program loads, or from whom it downloads."""
CODE_FLAGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("enable_custom_logit_processor", "custom_weight_loader", "custom_sigquit_handler"), ()),
    **dict.fromkeys(("forward_hooks", "sidecar", "tool_server", "encoder_urls", "otlp_traces_endpoint"), ()),
    "load_format": ("remote", "remote_instance"),
    "hicache_storage_backend": ("dynamic",),
    "unified_cache_external_linker_backend": ("dynamic",),
}
"""Settings of SGLang, with these values or with any, that a recipe of somebody else must not set: they run code of a
client, a file or a module, take weights from another server, or send it what clients ask."""

RELEASE = re.compile(r"\d+\.\d+\.\d+([.-]?(post|rc|dev)\d*)?")

SAMPLING = "preferred_sampling_params"
"""The flag that SGLang uses for request defaults; its value is JSON."""


def release_in(image: str) -> str:
    """Return the release in the tag of an image; an empty text if there is none."""
    found = RELEASE.search(image.partition("@")[0].rpartition(":")[2])
    return found[0] if found else ""


def image_findings(image: str, contains: str, pinned: str, version: Version, where: str, newest: str) -> list[Finding]:
    """Report a missing image, one that is not pinned, one that no registry has, or one of another version.

    ``contains`` is the release in the image and ``pinned`` its name with a digest, if they are known; ``newest`` is the
    newest release of which there is an image.
    """
    if not image:
        return [_finding("profile.image.missing", None, where, version=version, newest=newest)]
    found = []
    if image.startswith("localhost/"):
        found.append(_finding("profile.image.local", image, where))
    elif "@sha256:" not in image:
        rule = "profile.image.unpinned/known" if "@" in pinned else "profile.image.unpinned"
        found.append(_finding(rule, image, where, pinned=pinned))
    if contains and Version.parse(contains) != version:
        found.append(_finding("profile.image.version", image, where, contains=contains, version=version))
    tagged = Version.find(release_in(image))
    # Forks number their tags themselves, so only a tag with SGLang's first two numbers is compared.
    if tagged is not None and tagged.release[:2] == version.release[:2] and tagged.release != version.release:
        found.append(_finding("profile.image.version/tag", image, where, tagged=tagged, version=version))
    return found


def status_findings(merged: Mapping[str, Any], version: Version, where: str) -> list[Finding]:
    """Report a preset that is known to fail: an error on the release where it failed, a warning on other releases."""
    if merged.get("status") != "broken":
        return []
    seen, source = Version.parse(str(merged["sglang_version"])), str(merged.get("source") or "the profile")
    details = merged.get("description") or "no details given"
    rule = "profile.broken" if seen.release == version.release else "profile.broken/release"
    return [_finding(rule, "broken", where, seen=seen, version=version, details=details, source=source)]


def context_findings(merged: Mapping[str, Any], most: int | None, image: str, where: str) -> list[Finding]:
    """Note up to which length of a prompt somebody has seen right answers of the preset on this image, if not further.

    ``most`` is the model's own context. Servers answered with one token over and over from 120,000 tokens on while
    their profile promised 262,144 (sglang#36537).
    """
    args = merged.get("server_args") or {}
    promised, known = args.get("context_length") or most, merged.get("verified")
    if not isinstance(promised, int) or args.get("is_embedding"):
        return []
    if not known:
        return [_finding("profile.context", promised, where)]
    if _digest(known["image"]) != _digest(image):
        return [_finding("profile.context/image", promised, where, **known)]
    return [_finding("profile.context/length", promised, where, **known)] if known["tokens"] < promised else []


def _digest(image: str) -> str:
    return image.rpartition("@")[2]


def secret_findings(server_args: Mapping[str, Any], env: Mapping[str, str], where: str) -> list[Finding]:
    """Report secrets, which would stand in the profile, in Kubernetes objects and in the list of processes."""
    keys = [key for key in SECRET_FLAGS if server_args.get(key)]
    keys += [name for name, value in env.items() if value and (SECRET.search(name) or SECRET_VALUE.search(str(value)))]
    return [_finding("profile.secret", None, where, key=key) for key in keys]


def with_sampling(
    server_args: Mapping[str, Any], sampling: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the settings with the request defaults under SGLang's own flag name."""
    given = {key: value for key, value in sampling.items() if value is not None}
    if not given:
        return dict(server_args), []
    if SAMPLING in server_args:
        return dict(server_args), [_finding("profile.sampling.twice", server_args[SAMPLING], where, key=SAMPLING)]
    return {**server_args, SAMPLING: given}, []


class ProfileError(ValueError):
    """An unusable profile; the message names the profile, the problem and the remedy.

    ``usable`` is the part that the schema accepts, so that its flags can be checked in the same run; empty if it does
    not name a release.
    """

    def __init__(self, message: str, usable: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.usable = dict(usable or {})


LONGEST = 20_000
"""Characters of the longest value; a longer one would fill every message about it."""


MOST = 100_000
"""Values of the largest file, with those that its aliases repeat; each 100 characters of a text are one more."""


DEEPEST = 5_000
"""Levels of the deepest text that is read. With a stack of 8 MiB libyaml crashes at 30,000, not at 20,000 (tried)."""

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes a tenth of the time


class _Loader(_Base):
    """Rejects duplicate keys in a mapping, of which YAML would keep the last, infinite numbers, and endless values."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # refuses an alias that contains itself

    def get_single_node(self) -> yaml.Node | None:
        """Return the root of the file; refuse one whose aliases repeat more values than a reader could go through."""
        root = super().get_single_node()
        sizes: dict[int, int] = {}

        def size(node: yaml.Node) -> int:
            if id(node) not in sizes:
                sizes[id(node)] = 1  # an alias that contains itself is refused later
                text = len(node.value) // 100 if isinstance(node, yaml.ScalarNode) else 0
                pairs = node.value if isinstance(node, (yaml.SequenceNode, yaml.MappingNode)) else []
                parts = [part for pair in pairs for part in (pair if isinstance(pair, tuple) else (pair,))]
                sizes[id(node)] = 1 + text + sum(map(size, parts))
            return sizes[id(node)]

        if root is not None and (values := size(root)) > MOST:
            reason = f"aliases repeat its values {values} times, of which {MOST} are allowed"
            raise yaml.constructor.ConstructorError(None, None, reason, root.start_mark)
        return root

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text: str = super().construct_scalar(node)
        if len(text) > LONGEST:
            reason = f"a value of {len(text)} characters, of which {LONGEST} are allowed: {text[:40]!r}…"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return text

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number = super().construct_yaml_float(node)
        if not isfinite(number):
            reason = f"{node.value!r} is not a finite number"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
# No value is a date, but a revision or a name may look like one.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_scalar)


def find_profiles(search_path: Iterable[Path | str] = ()) -> dict[str, Path]:
    """Return every profile by name; the first match on the search path wins; the collection's profiles come last.

    Raise BrokenInstallation without the collection's.
    """
    if not PROFILES.is_dir():
        raise BrokenInstallation(f"the collection is incomplete: {PROFILES} is missing", INSTALL_AGAIN)
    found: dict[str, Path] = {}
    for directory in (*(Path(entry) for entry in search_path), PROFILES):
        for path in sorted((*directory.glob("*.yml"), *directory.glob("*.yaml"))):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_profile(name: str, search_path: Iterable[Path | str] = ()) -> dict[str, Any]:
    """Return a profile as a plain mapping after checking it with the schema; raise ProfileError with all problems."""
    search_path = list(search_path)
    profiles = find_profiles(search_path)
    if name not in profiles:
        path = Path(name)
        if path.suffix in (".yml", ".yaml"):
            raise ProfileError(f"{name} is a path; name it {path.stem}, and its directory in gb10_profile_dirs")
        if gone := [str(one) for one in search_path if not Path(one).is_dir()]:
            raise ProfileError(f"there is no profile {name}, and no directory {', '.join(gone)} (gb10_profile_dirs)")
        close = get_close_matches(name, profiles, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(profiles)}."
        raise ProfileError(f"there is no profile {name}. {hint}" if name else f"no profile is named. {hint}")
    return read_profile(profiles[name])


def profiles_of(repo: str, search_path: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of the profiles that serve a repository; profiles that can't be read are left out."""
    found = []
    for name, path in find_profiles(search_path).items():
        with suppress(ProfileError):
            model = (read_yaml(path) or {}).get("model") or {}
            if str(model.get("repo") or "").lower() == repo.lower():
                found.append(name)
    return found


def read_yaml(path: Path) -> Any:
    """Return the content of a file; raise ProfileError if it can't be read or has a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ProfileError(f"{path}: not readable: {getattr(problem, 'strerror', None) or problem}") from problem
    try:
        if _levels(text) > DEEPEST:
            raise RecursionError
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except RecursionError as problem:
        raise ProfileError(f"{path}: not readable as YAML: its values are nested too deeply") from problem
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place, said = (f"{path}:{mark.line + 1}", getattr(problem, "problem", "")) if mark else (path, problem)
        raise ProfileError(f"{place}: not readable as YAML: {said}") from problem


def _levels(text: str) -> int:
    """Return a number of levels that the values of a text do not exceed: each one needs a sign or a wider indent."""
    lines = (len(line) - len(line.lstrip()) + line.count("-") + line.count("?") for line in text.splitlines())
    return text.count("[") + text.count("{") + max(lines, default=0)


def read_profile(path: Path) -> dict[str, Any]:
    profile = with_words(read_yaml(path))
    problems = list(schema_problems(profile))
    if isinstance(profile, Mapping) and profile.get("name") not in (None, path.stem):
        problems.append(f"name: {profile['name']!r} must be the file's name, {path.stem!r}")
    if problems:
        raise ProfileError("\n".join(f"{path}: {problem}" for problem in problems), _usable(profile, path.stem))
    return dict(profile)


def with_words(value: Any) -> Any:
    """Return a copy whose keys are texts: YAML reads an unquoted number as a number, also before a colon."""
    if isinstance(value, Mapping):
        return {str(key): with_words(each) for key, each in value.items()}
    return [with_words(each) for each in value] if isinstance(value, list) else value


def _usable(profile: Any, name: str) -> dict[str, Any]:
    """Return a profile without the values that violate the schema, and without a list that has one."""
    kept = deepcopy(profile) if isinstance(profile, dict) else {}
    for found in violations(profile, load_schema("profile")) if kept else ():
        holder: Any = kept
        for at, part in enumerate(found.path):
            if not isinstance(holder, dict) or part not in holder:
                break
            last = at + 1 == len(found.path) and found.keyword not in ("required", "additionalProperties")
            if last or isinstance(holder[part], list):
                del holder[part]
                break
            holder = holder[part]
    if kept.get("default_preset") not in (kept.get("presets") or {}):
        kept.pop("default_preset", None)
    return kept | {"name": name} if "sglang_version" in kept else {}


def schema_problems(profile: Any) -> Iterable[str]:
    """Yield every violation of the published schema in a profile, with its place."""
    for found in violations(profile, load_schema("profile")):
        wanted = f" (expected: {found.wanted})" if found.wanted else ""
        yield f"{found.place or 'profile'}: {found.reason}{wanted}"
    presets = profile.get("presets") if isinstance(profile, Mapping) else None
    if isinstance(presets, Mapping):
        named = {"default_preset": profile.get("default_preset")}
        overlays = {name: preset for name, preset in presets.items() if isinstance(preset, Mapping)}
        named |= {f"presets.{name}.based_on": preset.get("based_on") for name, preset in overlays.items()}
        for place, name in named.items():
            # An empty default means that the user has to choose.
            if isinstance(name, str) and name not in presets and (name or place != "default_preset"):
                close = "".join(f" (did you mean {word}?)" for word in get_close_matches(name, map(str, presets), 1))
                yield f"{place}: the profile has no preset {name!r}{close}"


def override_findings(overrides: Any, where: str) -> list[Finding]:
    """Return a finding for every violation of the schema in overrides of a preset, with its place in them.

    Overrides have the format of a preset and may also change the model, for example its revision.
    """
    schema = load_schema("profile")
    preset = schema["$defs"]["preset"]
    own = {key: value for key, value in preset["properties"].items() if key != "based_on"}
    own["model"] = {**schema["properties"]["model"], "required": []}
    return [
        _finding("profile.override", None, where, key=found.place or "overrides", problem=found.reason)
        for found in violations(overrides, {**preset, "properties": own, "$defs": schema["$defs"]})
    ]


DOCKER_HUB = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")
OFFICIAL = ("lmsysorg/sglang", "nvcr.io/nvidia/sglang")
"""Images of SGLang's and NVIDIA's own, without registry and tag."""


@dataclass(frozen=True)
class Image:
    """An image: its release of SGLang, the profile that lists it, its changes, and its size in GB (None: not known).

    ``profile`` is empty for SGLang's own images, of which ``platforms`` are known and on which GPUs somebody ran them
    (``ran``: what and when, by the name of the GPU).
    """

    reference: str
    sglang: str
    profile: str = ""
    carries: tuple[str, ...] = ()
    gb: float | None = None
    platforms: str = ""
    ran: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def digest(self) -> str:
        """Return the digest in the reference, or an empty text."""
        return self.reference.partition("@")[2]

    def describe(self, gpu: str) -> str:
        """Return what is known of one of SGLang's own images; nothing of another one."""
        if not self.platforms:
            return ""
        ran = f"ran on {gpu}: {self.ran[gpu]}" if gpu in self.ran else f"no run on {gpu} is known"
        return f"SGLang's own, {self.platforms}; {ran}"


@lru_cache(maxsize=4)
def official_images(path: Path = PROFILES / "images.json") -> tuple[Image, ...]:
    """Return SGLang's own images, which need no entry in a profile; raise ValueError if the file is malformed."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return tuple(Image(**{"reference" if key == "image" else key: row[key] for key in row}) for row in rows)
    except (OSError, AttributeError, TypeError, ValueError) as problem:
        raise ValueError(f"{path}: not a list of images: {problem}") from problem


def images_of(profile: Any) -> tuple[Image, ...]:
    """Return the images that a profile lists, in its order; entries that are malformed are left out."""
    listed, name = (profile.get("images"), str(profile.get("name"))) if isinstance(profile, Mapping) else (None, "")
    found = []
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and {"sglang", "image"} <= set(entry):
            carries = tuple(str(each) for each in entry.get("carries") or ())
            found.append(Image(str(entry["image"]), str(entry["sglang"]), name, carries, entry.get("gb")))
    return tuple(found)


def select_image(images: Sequence[Image], version: Version) -> Image | None:
    """Return the first image of a version, else the first of the same release."""
    same = [image for image in images if Version.parse(image.sglang).release == version.release]
    exact = [image for image in same if Version.parse(image.sglang) == version]
    return next(iter(exact or same), None)


def bare(reference: str) -> str:
    """Return name and tag of an image without its digest and without the registry that Docker assumes."""
    name = reference.partition("@")[0].removeprefix("docker://")
    return next((name.removeprefix(host) for host in DOCKER_HUB if name.startswith(host)), name)


def name_of(reference: str) -> str:
    """Return an image's name without registry, tag and digest."""
    name = bare(reference)
    return name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name


def known_images(search_path: Iterable[Path | str] = ()) -> tuple[Image, ...]:
    """Return the images of all profiles and SGLang's own; the use of a profile that can't be read reports it."""
    return _known(tuple(str(entry) for entry in search_path))


@lru_cache(maxsize=4)
def _known(search_path: tuple[str, ...]) -> tuple[Image, ...]:
    found: list[Image] = []
    for path in find_profiles(search_path).values():
        with suppress(ProfileError):
            found += images_of(read_yaml(path))
    return (*found, *official_images())


def look_up(images: Sequence[Image], reference: str) -> Image | None:
    """Return what is known of an image by its digest, or if it has none, by its name and tag."""
    digest = reference.partition("@")[2]
    if digest:
        return next((image for image in images if image.digest == digest), None)
    named = [image for image in images if bare(image.reference) == bare(reference) and ":" in bare(reference)]
    return next((image for image in named if image.digest), next(iter(named), None))


def release_of(images: Sequence[Image], reference: str) -> str:
    """Return the release of SGLang in an image by the profiles, or by its tag; an empty text if neither says it."""
    found = look_up(images, reference)
    return found.sglang if found else release_in(reference)


def newest(images: Sequence[Image]) -> Image:
    """Return the image of the newest release that has one, with a digest if there is one; raise ValueError without."""
    return max(images, key=lambda image: (Version.parse(image.sglang), bool(image.digest)))
