# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate modules that SGLang imports but never calls on a CPU. Python loads this file at its start."""

import importlib.machinery
import sys
from typing import Any

from ask_sglang import Stubs

ABSENT = frozenset(
    {"gguf", "jsonschema", "quack", "scipy", "sgl_kernel", "soundfile", "torchaudio", "torchvision", "triton", "vllm"}
)


class _Finder(Stubs):
    """Simulate a module only if no other finder has it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None


sys.meta_path.append(_Finder())
