# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load a checkpoint with SGLang's own file model_loader/weight_utils.py: load_weights.py DIRECTORY BEGIN.

It imports PyTorch, and begins when the file BEGIN tells how many threads load; with 0 the files are mapped.

Real: this file, safetensors, PyTorch, and the order of work of DefaultModelLoader, which allocates all parameters first
and then copies each tensor that the iterator yields. The other modules of SGLang are simulated, because to import them
takes ten minutes of an emulated machine. The lines are those with which SGLang's ModelRunner begins and ends a load;
front_door.py, which runs this program, reads them.
"""

import importlib.util
import logging
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from ask_sglang import Stubs

SOURCE = Path("/opt/weight_utils.py")


class Elsewhere(Stubs):
    """Simulates the modules of SGLang, and of the packages that only downloads need."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        simulated = fullname.partition(".")[0] in {"sglang", "huggingface_hub", "filelock", "pydantic"}
        return ModuleSpec(fullname, self, is_package=True) if simulated else None

    def exec_module(self, module: Any) -> None:
        """Give the modules what the iterators use of them."""
        module.BAR_FORMAT = "{desc}: {n_fmt}/{total_fmt}\n"


def main() -> None:
    sys.meta_path.insert(0, Elsewhere())
    spec = importlib.util.spec_from_file_location("weight_utils", SOURCE)
    assert spec is not None and spec.loader is not None
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    torch, safe_open = loader.torch, loader.safetensors.safe_open
    logging.basicConfig(level="INFO", format="[TP0] %(message)s")
    log = logging.getLogger("sglang.srt")
    files = sorted(map(str, Path(sys.argv[1]).glob("*.safetensors")))
    parameters = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            for name in names:
                shape = opened.get_slice(name).get_shape()
                parameters[name] = torch.empty(shape, dtype=torch.bfloat16)
    begin = Path(sys.argv[2])
    log.info("PyTorch is imported")
    while not begin.exists():
        time.sleep(0.2)
    log.info("Load weight begin. avail mem=0 GB")
    if threads := int(begin.read_text(encoding="ascii")):
        tensors = loader.buffered_multi_thread_safetensors_weights_iterator(files, threads, disable_mmap=True)
    else:
        tensors = loader.safetensors_weights_iterator(files)
    for name, tensor in tensors:
        parameters[name].copy_(tensor)
    log.info("Load weight end. elapsed=0 s")
    time.sleep(3600)


if __name__ == "__main__":
    main()
