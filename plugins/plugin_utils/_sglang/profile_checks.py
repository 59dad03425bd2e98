# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the parts of a profile that are not flags: image, status, hardware, sampling and overrides.

Private to the collection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

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

OWNED_FLAGS = frozenset("--" + key.replace("_", "-") for key in OWNERS)


RELEASE = re.compile(r"\d+\.\d+\.\d+([.-]?(post|rc|dev)\d*)?")

SAMPLING = "preferred_sampling_params"
"""The flag that SGLang uses for request defaults; its value is JSON."""


def release_in(image: str) -> str:
    """Return the release in the tag of an image; an empty text if there is none."""
    found = RELEASE.search(image.partition("@")[0].rpartition(":")[2])
    return found[0] if found else ""


def override_findings(problems: Iterable[tuple[str, str]], where: str) -> list[Finding]:
    """Convert schema problems of overrides to findings; each problem comes with its place in the overrides."""
    remedy = "Write it as a preset of a profile does (docs/profiles.md)"
    return [
        Finding("error", "profile.override", place or "overrides", None, problem, remedy, where)
        for place, problem in problems
    ]


def image_findings(image: str, contains: str, pinned: str, version: Version, where: str, newest: str) -> list[Finding]:
    """Report a missing image, one that is not pinned, one that no registry has, or one of another version.

    ``contains`` is the release in the image and ``pinned`` its name with a digest, if they are known; ``newest`` is the
    newest release of which there is an image.
    """

    def note(severity: Severity, rule: str, reason: str, remedy: str) -> Finding:
        return Finding(severity, rule, "images", image or None, reason, remedy, where)

    if not image:
        reason = f"no image of SGLang {version} is known; the newest release with one is {newest}"
        remedy = "Set gb10_sglang_image, or add the image under images in the profile"
        return [note("error", "profile.image.missing", reason, remedy)]
    found = []
    if image.startswith("localhost/"):
        reason = "no registry has it: each node needs it from the machine on which it was built"
        remedy = "Push it to a registry and set gb10_sglang_image, or import it on every node (k3s ctr images import)"
        found.append(note("warning", "profile.image.local", reason, remedy))
    elif "@sha256:" not in image:
        why = "a tag can be moved, so the digest that the first node pulls is recorded and required from then on"
        reason = f"it names no digest; {why}"
        remedy = f"Write {pinned}" if "@" in pinned else "Nothing to do; no public record of its digest is known"
        found.append(note("info", "profile.image.unpinned", reason, remedy))
    if contains and Version.parse(contains) != version:
        reason = f"the image contains SGLang {contains}, but {version} was requested"
        found.append(note("warning", "profile.image.version", reason, "Request the version of the image"))
    tagged = Version.find(release_in(image))
    # Forks number their tags themselves, so only a tag with SGLang's first two numbers is compared.
    if tagged is not None and tagged.release[:2] == version.release[:2] and tagged.release != version.release:
        reason = f"its tag says SGLang {tagged}, but the flags are checked for {version}"
        found.append(
            note("warning", "profile.image.version", reason, "Correct gb10_sglang_image or gb10_sglang_version")
        )
    return found


def status_findings(merged: Mapping[str, Any], version: Version, where: str) -> list[Finding]:
    """Report a preset that is known to fail: an error on the release where it failed, a warning on other releases."""
    if merged.get("status") != "broken":
        return []
    seen, source = Version.parse(str(merged["sglang_version"])), str(merged.get("source") or "the profile")
    same = seen.release == version.release
    reason = f"it failed on SGLang {seen}: {merged.get('description') or 'no details given'} ({source})"
    remedy = "Choose another preset" if same else f"Try it on SGLang {version} before you rely on it"
    severity: Severity = "error" if same else "warning"
    return [Finding(severity, "profile.broken", "status", "broken", reason, remedy, where, source)]


def context_findings(merged: Mapping[str, Any], most: int | None, image: str, where: str) -> list[Finding]:
    """Note up to which length of a prompt somebody has seen right answers of the preset on this image, if not further.

    ``most`` is the model's own context. Servers answered with one token over and over from 120,000 tokens on while
    their profile promised 262,144 (sglang#36537).
    """
    args = merged.get("server_args") or {}
    promised, known = args.get("context_length") or most, merged.get("verified")
    if not isinstance(promised, int) or args.get("is_embedding"):
        return []
    remedy = "Run playbook verify with -e nccl_verify_answers=full before you rely on long prompts"
    if not known:
        reason = "nobody is known to have verified the answers to long prompts"
    elif _digest(known["image"]) != _digest(image):
        reason = (
            f"answers were verified up to {known['tokens']} tokens on another image, {known['image']} ({known['by']})"
        )
    elif known["tokens"] < promised:
        reason = f"not verified beyond {known['tokens']} tokens ({known['by']})"
    else:
        return []
    return [Finding("info", "profile.context", "context_length", promised, reason, remedy, where)]


def _digest(image: str) -> str:
    return image.rpartition("@")[2]


def hardware_findings(hardware: str, platform: str | None, where: str) -> list[Finding]:
    """Report a profile that was written for another platform than the nodes', if that is known."""
    if platform in (None, hardware):
        return []
    reason = f"the profile is for {hardware}, the nodes are {platform}"
    remedy = f"Choose a profile for {platform}, or set serving_plan_platform to {hardware} if that is what they are"
    return [Finding("error", "profile.hardware", "hardware", hardware, reason, remedy, where)]


def secret_findings(server_args: Mapping[str, Any], env: Mapping[str, str], where: str) -> list[Finding]:
    """Report secrets, which would stand in the profile, in Kubernetes objects and in the list of processes."""
    reason = "is a secret, which everybody who reads the profile or the process list would see"
    remedy = "Remove it, and give gateway_api_key or sglang_hf_token from your vault"
    keys = [key for key in SECRET_FLAGS if server_args.get(key)]
    keys += [name for name, value in env.items() if value and (SECRET.search(name) or SECRET_VALUE.search(str(value)))]
    return [Finding("error", "profile.secret", key, None, reason, remedy, where) for key in keys]


def with_sampling(
    server_args: Mapping[str, Any], sampling: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the settings with the request defaults under SGLang's own flag name."""
    given = {key: value for key, value in sampling.items() if value is not None}
    if not given:
        return dict(server_args), []
    if SAMPLING in server_args:
        reason, remedy = "the profile sets it under sampling too", f"Give it under sampling only, and remove {SAMPLING}"
        value = server_args[SAMPLING]
        return dict(server_args), [Finding("error", "profile.sampling.twice", SAMPLING, value, reason, remedy, where)]
    return {**server_args, SAMPLING: given}, []
