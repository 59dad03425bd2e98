# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate objects as a strict API server does: the models of Kubernetes' own client refuse other fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import kubernetes.client


def validate(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of the objects; raise pydantic's ValidationError for an unknown field or a wrong type.

    Kinds of other API groups than Kubernetes' own are not validated and not returned.
    """
    kinds = []
    for item in objects:
        if model := getattr(kubernetes.client, f"V1{item['kind']}", None):
            model.model_validate(item)
            kinds.append(str(item["kind"]))
    return kinds
