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
SECRET = re.compile(r"TOKEN$|SECRET|PASSW|KEY$", re.IGNORECASE)
"""Settings, and names of variables, that are secrets."""

OWNED_FLAGS = frozenset("--" + key.replace("_", "-") for key in OWNERS)
