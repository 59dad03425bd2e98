# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of SGLang that the collection writes itself and that a profile must not set. Private to the collection."""

from __future__ import annotations

import re

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
"""Every owned setting in every spelling of SGLang 0.5.9 to 0.5.23, with the place that its value comes from."""

SECRET_FLAGS = ("api_key", "admin_api_key", "ssl_keyfile_password")
SECRET = re.compile(r"(_TOK|TOKEN)\d*$|SECRET|PASSW|(?<!BY)PASS$|_(PW|PAT|AUTH)$|PWD$|CREDENTIAL|KEY$", re.IGNORECASE)
"""Settings, and names of variables, that are secrets."""
SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|\b(hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[a-z]-|nvapi-|AKIA|eyJ)[\w-]{12,}|PRIVATE KEY-"
)
"""Values that are secrets under any name: an address with a password, tokens of vendors, a key file."""
CODE = re.compile(
    r"LD_\w+|PYTHON(?!UNBUFFERED$|HASHSEED$|FAULTHANDLER$)\w*|PATH|BASH_ENV|ENV|IFS|SHELL|CC|CXX|NVCC|PIP_\w+|GCONV_PATH"
    r"|HF_(ENDPOINT|HOME|MODULES_CACHE)|HUGGINGFACE_\w+|GIT_\w+|NCCL_(NET|TUNER|PROFILER|ENV)_PLUGIN|NCCL_CONF_FILE"
    r"|SGLANG_EXTERNAL_\w+|SGLANG_PLUGINS?|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE",
    re.IGNORECASE,
)
"""Variables that decide which code a program loads, or from whom it downloads."""
CODE_FLAGS = ("enable_custom_logit_processor", "custom_weight_loader", "custom_sigquit_handler", "forward_hooks")
"""Settings of SGLang that run code of a client or of a file; a recipe of somebody else must not set them."""
REMOTE_FORMATS = ("remote", "remote_instance")
"""Formats of weights that SGLang takes from another server."""

OWNED_FLAGS = frozenset("--" + key.replace("_", "-") for key in OWNERS)
