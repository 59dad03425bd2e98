# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the installed SGLang whether it accepts command lines. Runs in a pod of the group's image; standard library only.

It runs the release's own parser and resolver (``prepare_server_args``, ``resolve_once``, ``check_server_args``) on the
arguments of every rank, and answers SGLang's questions about the GPU as the planned one would. No kernel runs.

An answer is ``accepted``, ``refused`` with SGLang's own text, or ``unknown``: what fails because of this check (no
driver, a missing file or package, too little time) says nothing about the command line.
"""

from __future__ import annotations

import abc
import argparse
import base64
import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "gb10-verdict "
"""Start of each line with an answer; SGLang and its packages print other lines."""
GIB = 2**30

KERNELS = frozenset({"flashinfer", "gguf", "jsonschema", "quack", "scipy", "sgl_kernel", "soundfile", "torchaudio",
                     "torchvision", "triton", "vllm"})  # fmt: skip
"""Packages that are imported but never called; their libraries may need a driver. Others are not replaced, because
SGLang tests whether they are there."""

VALUES: dict[str, dict[str, Any]] = {
    "sglang.srt.layers.attention.fla.chunk_delta_h": {"CHUNK_SIZE": 64},
    "sglang.kernels.ops.attention.fla.chunk_delta_h": {"CHUNK_SIZE": 64},
}
"""Modules of kernels of which the arguments read only these values."""

ABSENT_NAMES = frozenset({"npu", "musa", "hpu"})
"""Attributes of torch for other hardware; ``hasattr`` must return False for them."""

SAYS_NOTHING = frozenset({"model_path", "random_seed", "served_model_name", "tokenizer_path"})
"""Settings that change at every start, or that contain the name of the temporary model directory."""

FOREIGN = ("/torch/", *(f"/{name}/" for name in KERNELS), "/cuda/", "/pynvml")
"""Packages whose failure is due to the missing GPU."""
DELIBERATE = (ValueError, AssertionError, NotImplementedError, argparse.ArgumentTypeError)
"""What SGLang raises to refuse. Others, such as KeyError, may come from the pretended GPU: then the check failed."""


class LateError(BaseException):
    """The time is over. SGLang's own handlers of exceptions must not see it."""


class AnyClass(abc.ABCMeta):
    """Gives a stub class every attribute, for example ``Image.Image`` in an annotation."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__

    def register(cls, *_args: Any, **_kwargs: Any) -> None:  # type: ignore[override]
        """Accept any registration, because transformers passes other arguments than ABCMeta expects."""


class Anything(metaclass=AnyClass):
    """Replaces a class or function of a missing package: callable, subscriptable, usable as a base class."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **_kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, _item: Any) -> type:
        return cls

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        # A decorator must return the decorated object.
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name, type(self).__module__)

    def __getitem__(self, _item: Any) -> Any:
        return self

    def __or__(self, _other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __int__(self) -> int:
        return 0


def _stand_in(name: str, module: str) -> Any:
    """Return a class for a capitalised name, so that it can be inherited from, and an object for any other name."""
    return AnyClass(name, (Anything,), {"__module__": module}) if name[:1].isupper() else Anything()


class Stub(types.ModuleType):
    """A module that has every name; a capitalised one is a class, so that it can be inherited from."""

    __version__ = "2.99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ABSENT_NAMES:
            raise AttributeError(name)
        value = _stand_in(name, self.__name__)
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces the modules of `VALUES`, and kernels that are not installed or don't load here."""

    def __init__(self) -> None:
        self._broken: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a stub, or of a package that becomes one if it fails."""
        del path, target
        top = fullname.partition(".")[0]
        if fullname in VALUES or top in self._broken:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if fullname != top or top not in KERNELS:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname)
        if found is None or found.loader is None:
            self._broken.add(top)
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        found.loader = _Guard(found.loader, self._broken, self)
        return found

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module that has every name."""
        module = Stub(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module its known values."""
        for name, value in VALUES.get(module.__name__, {}).items():
            setattr(module, name, value)


class _Guard(importlib.abc.Loader):
    """Loads a package, and replaces it by a stub if that fails, as kernels do without a driver."""

    def __init__(self, real: Any, broken: set[str], stubs: Stubs) -> None:
        self._real, self._broken, self._stubs = real, broken, stubs

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            self._real.exec_module(module)
        except Exception:  # a package may fail in any way
            name = module.__name__
            self._broken.add(name)
            for part in [key for key in sys.modules if key.startswith(f"{name}.")]:
                del sys.modules[part]
            spec = importlib.machinery.ModuleSpec(name, self._stubs, is_package=True)
            stub = self._stubs.create_module(spec)
            stub.__spec__ = spec
            sys.modules[name] = stub


def pretend(gpu: Mapping[str, Any]) -> None:
    """Answer SGLang's questions about the machine as one with this GPU does; nothing to do without torch."""
    if importlib.util.find_spec("torch") is None:
        return
    torch: Any = importlib.import_module("torch")
    major, minor = gpu["capability"]
    size = int(gpu["memory"] * GIB)
    properties = types.SimpleNamespace(
        name=gpu["name"],
        major=major,
        minor=minor,
        total_memory=size,
        multi_processor_count=gpu["processors"],
        warp_size=32,
    )
    answers = {
        "is_available": True,
        "is_initialized": True,
        "init": None,
        "device_count": gpu["count"],
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "get_device_name": gpu["name"],
        "mem_get_info": (size, size),
        "empty_cache": None,
    }
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *_args, _value=value, **_kwargs: _value)
    torch.version.cuda = torch.version.cuda or "13.0"


def load(gpu: Mapping[str, Any]) -> Any:
    """Return the release's module of arguments; raise whatever its import raises."""
    logging.disable(logging.CRITICAL)
    os.environ.update(TORCHDYNAMO_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    sys.meta_path.insert(0, Stubs())
    with contextlib.redirect_stdout(sys.stderr):
        pretend(gpu)
        return importlib.import_module("sglang.srt.server_args")


def plain(value: Any) -> Any:
    """Return a value as the JSON of ``/server_info`` has it: SGLang's objects as their fields, others as text."""

    def fields(other: Any) -> Any:
        names = getattr(other, "__dataclass_fields__", None) or getattr(other, "__struct_fields__", None)
        return {name: getattr(other, name) for name in names} if names else str(other)

    return json.loads(json.dumps(value, default=fields))


def resolve(module: Any, argv: Sequence[str]) -> dict[str, Any]:
    """Return the resolved values of a command line and the changed ones; raise what the release raises.

    ``overruled`` are the changes of values that the command line names. ``engine`` is a digest: two command lines with
    the same one are the same server.
    """
    parser = argparse.ArgumentParser(prog="sglang")
    module.ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(list(argv))
    given = plain(vars(parsed))
    # It also reads files that the command line names. Since 0.5.20 it does not resolve.
    prepared = hasattr(module, "prepare_server_args")
    made = module.prepare_server_args(list(argv)) if prepared else module.ServerArgs.from_cli_args(parsed)
    if hasattr(made, "resolve_once"):
        made.resolve_once()
    made.check_server_args()
    values = made.resolved_dict() if hasattr(made, "resolved_dict") else vars(made)
    known = plain({key: value for key, value in values.items() if key in given and key not in SAYS_NOTHING})
    text = json.dumps(known, sort_keys=True)
    changes = {key: [given[key], value] for key, value in known.items() if given[key] != value}
    return {
        "changes": changes,
        "overruled": {key: both for key, both in changes.items() if both[0] != plain(parser.get_default(key))},
        "resolved": known,
        "engine": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def refuses(problem: BaseException) -> bool:
    """Return whether an exception is the release's judgement, not a consequence of asking without a GPU."""
    last = traceback.extract_tb(problem.__traceback__)[-1]
    if any(part in last.filename for part in FOREIGN):
        return False
    if isinstance(problem, DELIBERATE):
        return True
    raised = (last.line or "").startswith("raise")
    return type(problem) in (RuntimeError, Exception) and "/sglang/" in last.filename and raised


def judge(module: Any, argv: Sequence[str], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the verdict on one command line; ``names`` are the names to show for temporary directories."""
    said = io.StringIO()

    def named(text: str) -> str:
        for path, name in (names or {}).items():
            text = text.replace(path, name)
        return text

    empty: dict[str, Any] = {"changes": {}, "overruled": {}, "resolved": {}, "engine": ""}
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            text = json.dumps(resolve(module, argv))
        return {"verdict": "accepted", "message": "", **json.loads(named(text))}
    except SystemExit as end:
        lines = said.getvalue().strip().splitlines()
        verdict, message = ("refused" if end.code == 2 else "unknown"), lines[-1] if lines else f"exit {end.code}"
    except Exception as problem:  # whatever ends the start of the server is an answer
        verdict = "refused" if refuses(problem) else "unknown"
        # An assertion without a message is reported by its source line.
        message = f"{type(problem).__name__}: {str(problem) or traceback.extract_tb(problem.__traceback__)[-1].line}"
    return {"verdict": verdict, "message": named(message), **empty}


@contextlib.contextmanager
def staged(files: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Write the configuration files of models to new directories, and yield {directory: its name on the node}."""
    with tempfile.TemporaryDirectory() as scratch:
        made = {}
        for number, (name, texts) in enumerate(files.items()):
            directory = Path(scratch) / f"model-{number}"
            directory.mkdir()
            for file, text in texts.items():
                (directory / Path(file).name).write_text(text, encoding="utf-8")
            made[str(directory)] = name
        yield made


def placed(argv: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return a command line with the temporary directories instead of the nodes' ones."""
    found = {name: path for path, name in names.items()}
    words = []
    for word in argv:
        flag, equals, value = word.partition("=")
        words.append(f"{flag}={found[value]}" if equals and value in found else found.get(word, word))
    return words


def answer(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer per rank of ``asked``: ``gpu``, ``limit`` in seconds, ``files`` and ``ranks``."""
    begun = time.monotonic()
    waiting = {int(each["rank"]): each for each in asked["ranks"]}

    def late(_number: int, _frame: Any) -> None:
        raise LateError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(int(asked["limit"]))
    why, release = "", ""
    try:
        # SGLang reads its variables when it loads; the ranks differ only in addresses.
        os.environ.update(next((dict(each.get("env") or {}) for each in waiting.values()), {}))
        if asked["files"]:
            os.environ["HF_HUB_OFFLINE"] = "1"
        module = load(asked["gpu"])
        release = str(getattr(sys.modules.get("sglang.version") or sys.modules["sglang"], "__version__", ""))
        with staged(asked["files"]) as names:
            for rank in list(waiting):
                question = waiting[rank]
                os.environ.update(question.get("env") or {})
                found = judge(module, placed(question["argv"], names), names)
                yield {"rank": rank, "release": release, **found, **_cost(begun)}
                del waiting[rank]
    except LateError:
        why = f"the check took more than {asked['limit']} s"
    except (Exception, SystemExit) as problem:  # a check that fails says nothing about the command line
        why = f"SGLang's arguments don't load without a GPU: {type(problem).__name__}: {problem}"
    finally:
        signal.alarm(0)
    for rank in waiting:
        yield {"rank": rank, "release": release, "verdict": "unknown", "message": why, **_cost(begun)}


def _cost(begun: float) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": round(time.monotonic() - begun, 1), "mebibytes": round(peak)}


def main() -> None:
    """Print an answer per rank."""
    asked = json.loads(zlib.decompress(base64.b64decode(sys.argv[1])))
    for found in answer(asked):
        print(f"\n{MARK}{json.dumps(found, default=str)}", flush=True)


if __name__ == "__main__":
    main()
