# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build stub libraries in place of NVIDIA's, so that PyTorch's CUDA build loads without a GPU.

Usage: `nvidia_stubs.py TORCH/lib`. The package index has no CPU build of PyTorch for Linux, and its CUDA build requires
3.5 GB of libraries that are never called on a CPU. Each stub has exactly the symbols that PyTorch's own libraries need,
and every call returns "no CUDA device". Needs readelf and a C compiler.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

WANTED = re.compile(r"\(NEEDED\).*\[((?:libcu|libnv|libnccl)[^\]]*)\]")
SYMBOL = re.compile(r"\bUND (\w+)(?:@(\S+))?")
NVIDIA = re.compile(r"(_{0,2}cu[A-Zdfbrpst]|nccl|nv)\w+")
NO_DEVICE = 100
"""cudaErrorNoDevice: for PyTorch the machine then has zero devices; any other error means a broken one."""
TEXTS = frozenset({"cudaGetErrorString", "cudaGetErrorName", "ncclGetErrorString", "ncclGetLastError"})


def readelf(*words: str) -> str:
    return subprocess.run(["readelf", "-W", *words], check=True, capture_output=True, text=True).stdout


def needed(libraries: list[Path]) -> set[str]:
    """Return the names of NVIDIA's libraries with which the given ones are linked."""
    return {name for library in libraries for name in WANTED.findall(readelf("-d", str(library)))}


def missing(libraries: list[Path]) -> dict[str, str]:
    """Return every undefined NVIDIA symbol with its version, which is empty if the library has no versions."""
    found: dict[str, str] = {}
    for library in libraries:
        for name, version in SYMBOL.findall(readelf("--dyn-syms", str(library))):
            if NVIDIA.fullmatch(name):
                found[name] = version or found.get(name, "")
    return found


def write(directory: Path, name: str, symbols: list[str], versions: set[str]) -> None:
    """Compile one library that contains only functions, with their symbol version if there is one."""
    lines = []
    for symbol in symbols:
        returned = '"no CUDA device"' if symbol in TEXTS else f"(const char *){NO_DEVICE}"
        lines.append(f"const char *{symbol}(void) {{ return {returned}; }}")
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch) / "stub.c", Path(scratch) / "stub.map"
        source.write_text("\n".join(lines) + "\n")
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in sorted(versions)))
        command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", "-nostdlib", f"-Wl,-soname,{name}"]
        command += [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run([*command, "-o", str(directory / name), str(source)], check=True)


def main() -> None:
    """Write the stubs into PyTorch's library directory, which its libraries search first."""
    directory = Path(sys.argv[1])
    libraries = sorted(directory.glob("libtorch*.so")) + sorted(directory.glob("libc10*.so"))
    symbols, names = missing(libraries), needed(libraries)
    for name in sorted(names):
        mine = sorted(symbol for symbol, version in symbols.items() if version == name)
        write(directory, name, mine, {name} if mine else set())
    rest = sorted(symbol for symbol, version in symbols.items() if version not in names)
    # The loader finds a symbol without a version in any library of the process.
    write(directory, "libnccl.so.2", rest, set())


main()
