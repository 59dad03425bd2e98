# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container beside a rank's server that reads NCCL's files. Private to the collection."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_DIR, SIDECAR

from .model import Plan
from .pods import SECURITY
from .volumes import FILES


def with_sidecar(spec: dict[str, Any], plan: Plan, pull_policy: str) -> dict[str, Any]:
    """Return a rank's pod with the sidecar as its last container.

    NCCL's files are read here and not in the server's container, because a server that fails at its start can't be
    asked for the reason. The sidecar needs no privilege in any RDMA mode.
    """
    container = {
        "name": SIDECAR,
        "image": plan.image,
        "imagePullPolicy": pull_policy,
        "command": ["python3", f"{FILES}/transport_sidecar.py", "--nccl-logs", LOG_DIR],
        # NVIDIA's container runtime gives an image's container all GPUs unless this variable forbids it.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": SECURITY["restricted"] | {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "files", "mountPath": FILES, "readOnly": True},
            {"name": "nccl", "mountPath": LOG_DIR, "readOnly": True},
        ],
    }
    return spec | {"containers": [*spec["containers"], container]}
