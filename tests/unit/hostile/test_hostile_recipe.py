# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a recipe or command of somebody else cannot do: load code, keep a secret in clear, or hang the reader."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import (
    OTHER,
    STEPS,
    Source,
    commented,
    read_command,
    read_recipe,
    to_profile,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.adopt import (
    RECIPE as FIELDS,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import ProfileError, read_yaml
from seen import Seen

LIBRARY = Library.load()
IMAGE = "lmsysorg/sglang:v0.5.20"
RECIPE: dict[str, Any] = {"model": "a/b", "container": IMAGE, "defaults": {"tp": 2}}
CODE = {
    "LD_PRELOAD": "/tmp/x.so", "LD_LIBRARY_PATH": "/tmp", "LD_AUDIT": "/tmp/x.so", "PYTHONPATH": "/tmp", "PATH": "/tmp",
    "PYTHONSTARTUP": "/tmp/x.py", "PYTHONHOME": "/tmp", "BASH_ENV": "/tmp/x", "HF_ENDPOINT": "https://h.example",
    "NCCL_NET_PLUGIN": "/tmp/x.so", "NCCL_GIN_PLUGIN": "x", "CUDA_INJECTION64_PATH": "/tmp/x.so",
    "DUMPER_SERVER_PORT": "1", "NCCL_TUNER_PLUGIN": "/tmp/x.so", "PIP_INDEX_URL": "https://h.example",
    "https_proxy": "http://h.example", "SSL_CERT_FILE": "/tmp/ca", "SGLANG_EXTERNAL_MODEL_PACKAGE": "x",
}  # fmt: skip
SECRETS = {
    "MY_TOK": "a1b2c3d4", "HF_TOKEN": "x", "DB_PASS": "x", "APP_PWD": "x", "GH_PAT": "x", "REGISTRY_AUTH": "x",
    "A_PW": "x", "GOOGLE_CREDENTIALS": "x", "DATABASE_URL": "postgres://user:hunter2@db/x", "REDIS": "redis://:hunter2@h:6379",
    "THING": "hf_AbCdEfGhIjKlMnOpQrSt", "OTHER": "ghp_AbCdEfGhIjKlMnOpQrSt", "MORE": "eyJhbGciOiJIUzI1NiJ9.a.b",
    "LAST": "AKIAABCDEFGHIJKLMNOP", "NAMED": "glpat-AbCdEfGhIjKl",
}  # fmt: skip


def drafted(found: Source) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the profile of a source, and its findings by key."""
    fallback = {"repo": "", "sglang_version": "0.5.20", "image": ""}
    profile, findings = to_profile(found, LIBRARY.knowledge, "x", {}, fallback)
    return profile, {finding.key: str(finding) for finding in findings}


@pytest.mark.parametrize("name", [*CODE, *SECRETS])
@pytest.mark.parametrize("source", ["recipe", "command", "container"])
def test_no_variable_loads_code_or_is_a_secret(name: str, source: str) -> None:
    value = {**CODE, **SECRETS}[name]
    command = "sglang serve a/b --tp 2 --nnodes 2"
    found = {
        "recipe": lambda: read_recipe({**RECIPE, "env": {name: value, "OMP_NUM_THREADS": "8"}}, LIBRARY.knowledge),
        "command": lambda: read_command(f"{name}={value} OMP_NUM_THREADS=8 {command}"),
        "container": lambda: read_command(f"docker run -e {name}={value} -e OMP_NUM_THREADS=8 {IMAGE} {command}"),
    }[source]()
    profile, said = drafted(found)
    assert profile["env"] == {"OMP_NUM_THREADS": "8"}
    assert name in said
    assert name in CODE or value not in json.dumps([profile, said]) or value == "x"


EVIL = "x\x1b[2J\n- a: &a [*a]\u2028{{ lookup('pipe', 'id') }} hf_AbCdEfGhIjKlMnOpQrSt"
ODD: list[Any] = [EVIL, [EVIL], {EVIL: EVIL}, {"tp": [EVIL]}, {"a": {"b": EVIL}}, -1, 10**30, True, "", [], {}, 1.5]


@pytest.mark.parametrize("key", sorted({*FIELDS, *OTHER, *STEPS, "unknown"}))
def test_an_odd_value_of_any_key_is_refused_or_makes_a_plain_file_without_a_secret(key: str) -> None:
    for value in ODD:
        try:
            found = read_recipe({**RECIPE, key: value}, LIBRARY.knowledge)
            profile, said = drafted(found)
        except ValueError as error:
            assert str(error).isprintable()
            continue
        text = commented(profile, found.left_out)
        assert yaml.safe_load(text) == profile
        assert "hf_AbCdEf" not in json.dumps([text, said])
        assert "\x1b" not in text


def test_no_other_key_is_read() -> None:
    recipe = Seen(RECIPE)
    read_recipe(recipe, LIBRARY.knowledge)
    assert recipe.read <= {*FIELDS, *OTHER, *STEPS}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_custom_logit_processor", True),
        ("load_format", "remote"),
        ("load_format", "remote_instance"),
        ("sidecar", "x.y"),
        ("hicache_storage_backend", "dynamic"),
        ("otlp_traces_endpoint", "h.example:1"),
    ],
)
def test_no_setting_gives_the_choice_of_code_or_weights_to_others(key: str, value: Any) -> None:
    profile, said = drafted(read_recipe({**RECIPE, "defaults": {"tp": 2, key: value}}, LIBRARY.knowledge))
    assert key not in profile["server_args"]
    assert "yourself" in said[f"--{key.replace('_', '-')}"]


@pytest.mark.parametrize("value", [value for value in SECRETS.values() if len(value) > 1 and "a1b2" not in value])
@pytest.mark.parametrize(
    "flag", ["--speculative-draft-model-path ", "--no-such-flag ", "--trust-remote-code=", "--port ", ""]
)
def test_no_secret_stands_in_the_place_of_a_setting(flag: str, value: str) -> None:
    profile, said = drafted(read_command(f"sglang serve a/b --tp 2 --nnodes 2 {flag}{value}"))
    assert value not in json.dumps([profile, said])
    assert "***" in json.dumps(said)


def test_what_is_left_out_cannot_break_the_file() -> None:
    found = read_recipe({**RECIPE, "env": {"PATH": "\x1b[2J\x00\u2028a: b"}, "x\ny": 1}, LIBRARY.knowledge)
    profile, _said = drafted(found)
    text = commented(profile, found.left_out)
    assert yaml.safe_load(text) == profile
    assert "PATH=?[2J? a: b: decides" in text and "x y 1: is not read" in text


def test_code_of_a_repository_without_a_revision_is_reported() -> None:
    recipe = {**RECIPE, "defaults": {"tp": 2, "trust_remote_code": True}}
    assert "trust_remote_code" in drafted(read_recipe(recipe, LIBRARY.knowledge))[1]
    pinned = read_recipe({**recipe, "model_revision": "0123abc"}, LIBRARY.knowledge)
    assert "trust_remote_code" not in drafted(pinned)[1]


@pytest.mark.parametrize(
    "image", ["h.example/sglang:v0.5.20", "lmsysorg/sglang-evil:v0.5.20", "lmsysorg.example/sglang:1"]
)
@pytest.mark.parametrize("source", ["recipe", "command"])
def test_an_image_of_somebody_else_is_reported(image: str, source: str) -> None:
    def said(name: str) -> dict[str, str]:
        command = f"docker run {name} sglang serve a/b"
        recipe = {**RECIPE, "container": name}
        return drafted(read_command(command) if source == "command" else read_recipe(recipe, LIBRARY.knowledge))[1]

    assert "if you trust its author" in said(image)["image"]
    assert "image" not in said(IMAGE)


@pytest.mark.parametrize(
    "part",
    [
        " \n",
        "\n",
        " ",
        "- \n",
        "\n-",
        " -",
        "\\\n",
        "\\ #\n",
        "a=(",
        "'",
        "$a ",
        "&",
        "a= ",
        "\\#",
        "sglang ",
        "serve ",
        "docker ",
        "$",
        "{a}",
        "--a ",
        "-e a ",
    ],
)
def test_the_time_of_reading_grows_with_the_length_and_not_faster(part: str) -> None:
    start = time.process_time()
    text = part * (8192 // len(part))
    for end in (text, f"sglang serve a/b {text}x", f"{text} sglang serve a/b"):
        try:
            read_command(end)
        except ValueError:
            continue
    assert time.process_time() - start < 5


def test_a_longer_command_is_refused() -> None:
    for text, what in (("x" * 70_000, "characters"), ("x " * 5000, "words")):
        with pytest.raises(ValueError, match=what):
            read_command(f"sglang serve a/b {text}")
    with pytest.raises(ValueError, match="with its variables"):
        read_command(f"A={'x' * 9000}; sglang serve a/b {'$A ' * 10}")
    for defaults in ({f"x{number}": 1 for number in range(400)}, {"cuda_graph_bs": [1] * 5000}):
        with pytest.raises(ValueError, match="300 flags or 4096 words"):
            drafted(read_recipe({**RECIPE, "defaults": defaults}, LIBRARY.knowledge))


def test_a_file_of_aliases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    path.write_text("\n".join(lines))
    start = time.process_time()
    with pytest.raises(ProfileError, match="aliases"):
        read_yaml(path)
    assert time.process_time() - start < 5
    path.write_text(f"a: &a {'x' * 15_000}\nb: [{', '.join(['*a'] * 700)}]\n")
    with pytest.raises(ProfileError, match="aliases"):
        read_yaml(path)
    path.write_text("a: &a [1, 2]\nb: *a\n")
    assert read_yaml(path) == {"a": [1, 2], "b": [1, 2]}
