# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate objects as a strict API server does: the models of Kubernetes' own client refuse other fields."""

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
