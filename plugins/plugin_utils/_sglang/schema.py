# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare files that users write with the schemas of ``plugins/profiles/schema``. Private to the collection."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import clip

from .._controller.data import PROFILES

try:
    import jsonschema
except ImportError:
    # said when a file is checked: documentation and sanity tests load this module without it
    jsonschema = None  # type: ignore[assignment]


INSTALL_AGAIN = "Install the collection again: ansible-galaxy collection install gb10.cluster --force"
INSTALL_JSONSCHEMA = f"Run {sys.executable} -m pip install jsonschema"


class BrokenInstallation(ValueError):
    """A part of the installation is missing, which no file of the user can mend; ``remedy`` says what does."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}. {remedy}")
        self.reason, self.remedy = message, remedy


@dataclass(frozen=True)
class Violation:
    """One violation of a schema by its ``keyword``; ``wanted`` describes a valid value, if the schema does."""

    path: tuple[str | int, ...]
    place: str
    value: Any
    reason: str
    wanted: str
    keyword: str


@lru_cache(maxsize=4)
def load_schema(name: str) -> dict[str, Any]:
    """Return one of the schemas that the collection ships; raise BrokenInstallation if it is missing."""
    path = PROFILES / "schema" / f"{name}.schema.json"
    if not path.is_file():
        raise BrokenInstallation(f"the collection is incomplete: {path} is missing", INSTALL_AGAIN)
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def violations(data: Any, schema: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield every violation of a schema in the order of places; raise BrokenInstallation without jsonschema."""
    if jsonschema is None:
        raise BrokenInstallation(
            "the Python of ansible-core has no package jsonschema, so no profile can be checked", INSTALL_JSONSCHEMA
        )
    for error in sorted(_strict()(schema).iter_errors(data), key=lambda e: [str(part) for part in e.absolute_path]):
        path = tuple(error.absolute_path)
        place = clip(".".join(map(str, path)), 200)
        value = None if isinstance(error.instance, Mapping) else error.instance
        yield Violation(
            path, place, value, clip(_words(error)), str(error.schema.get("description", "")), error.validator
        )


@lru_cache(maxsize=1)
def _strict() -> Any:
    """Return the validator; unlike Python it takes neither 4.0 for an integer nor a newline for the end of a text."""
    base = jsonschema.Draft202012Validator

    def pattern(_validator: Any, wanted: str, text: Any, _schema: Any) -> Iterator[Any]:
        if isinstance(text, str) and (text.endswith("\n") or not re.search(wanted, text)):
            yield jsonschema.ValidationError(f"{text!r} does not match {wanted!r}")

    # Values of Ansible are of subclasses of int that remember where they were written.
    types = base.TYPE_CHECKER.redefine(
        "integer", lambda _checker, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(base, {"pattern": pattern}, type_checker=types)  # type: ignore[no-untyped-call]


def _words(error: Any) -> str:
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = list(error.schema.get("properties", ()))
        unknown = [key for key in error.instance if key not in known]
        return f"unknown key {', '.join(f'{key!r}{_meant(key, known)}' for key in unknown)}"
    if error.validator == "enum":
        choices = [str(choice) for choice in error.validator_value]
        return f"{error.instance!r} is not one of {', '.join(choices)}{_meant(error.instance, choices)}"
    if error.instance is None and not error.absolute_path:
        return "there is nothing in it"
    return str(error.message)


def _meant(word: Any, known: list[str]) -> str:
    """Return a suggestion for an unknown word, if one is close."""
    return "".join(f" (did you mean {close}?)" for close in get_close_matches(str(word), known, 1))
