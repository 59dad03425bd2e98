# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands, files and errors for modules that change a host.

This file is also copied to hosts (see package_files), where units run it without Ansible. It must import only the
standard library.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import importlib.util
import json
import os
import pwd
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

HOST_LIBRARY = Path("/usr/local/lib")
HOST_PACKAGE = "gb10"
UNIT_DIRECTORY = Path("/etc/systemd/system")
DEATH_S = 5  # time for a killed process to end
# messages of iproute2, nsenter, and systemd with polkit
DENIED = re.compile(r"not permitted|permission denied|authentication (is )?required|access denied", re.IGNORECASE)

# time="2026-11-28T10:00:00Z" level=fatal msg="starting kubernetes: preparing server: …", of K3s and other Go programs
FATAL = re.compile(r'level=fatal msg="((?:[^"\\]|\\.)*)"|^FATA(?:\[\d+\])? (.*)')
LONGEST = 800  # characters of a line that a message quotes


class HostError(Exception):
    """A command or file of this host failed; the text is meant for the user."""


class NoAnswer(HostError):
    """A command was stopped because it did not end in time, so its outcome is unknown."""


def explain(error: OSError | HostError, path: Path | str = "") -> str:
    """Return a message for the user: what failed, and the remedy if the error number suggests one."""
    if isinstance(error, HostError):
        return str(error)
    name = str(path or error.filename or "a file of the host")
    remedies = {
        errno.EROFS: f"Its file system is read-only: `findmnt -T {name}` shows it, and `dmesg` shows disk errors.",
        errno.ENOSPC: f"Free some space: `df -h {name}` shows the file system.",
    }
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = root_remedy() or f"Root was refused too: see `lsattr {name}` and the mount options."
    else:
        remedy = remedies.get(error.errno or 0, "")
    return f"{name}: {error.strerror or error}. {remedy}".strip()


def run_module(module: Any, converge: Callable[[Any, dict[str, Any]], None], **empty: Any) -> None:
    """Let ``converge`` fill in the result of a module, and end the module; ``empty`` has the keys of its result.

    A HostError or an OSError fails the module with its explanation, and the same keys.
    """
    result: dict[str, Any] = {"changed": False, "msg": "", **empty}
    try:
        converge(module, result)
    except (HostError, OSError) as error:
        module.fail_json(**{**result, "changed": False, "msg": explain(error)})
    module.exit_json(**result)


def root_remedy() -> str:
    """Return how to run as root; an empty string if the user is root already."""
    if os.geteuid() == 0:
        return ""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return (
        f"The task ran as user {user}, but needs root: set `become: true` for the host, and run ansible-playbook with"
        " -K if sudo asks for a password."
    )


def run(argv: Sequence[str], *, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a command without a shell. If it fails, raise HostError with its output.

    If a unit does not start, the message has what its process wrote last instead of systemctl's advice to look for it.
    """
    begun = time.time()
    try:
        # This code also runs at boot and from a timer, where no AnsibleModule.run_command exists.
        started = subprocess.Popen(  # pylint: disable=ansible-bad-function,consider-using-with
            list(argv),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError as error:
        raise HostError(f"{argv[0]}: command not found on this host; install the package that has it") from error
    except OSError as error:
        raise HostError(explain(error, argv[0])) from error
    try:
        output, errors = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        started.kill()
        # subprocess.run would wait without end for a process that the kernel does not let die, as ip on a hung driver.
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(timeout=DEATH_S)
        raise NoAnswer(f"{' '.join(argv)}: no answer within {timeout:.0f} s") from error
    done = subprocess.CompletedProcess(list(argv), started.returncode, output, errors)
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).replace("\n", "; ")
        if argv[0] == "systemctl" and {"start", "restart"} & set(argv):
            said = last_words(argv[-1], begun) or said
        remedy = root_remedy() if DENIED.search(said) else ""
        raise HostError(f"{' '.join(argv)}: exit status {done.returncode}: {said}. {remedy}".removesuffix(". "))
    return done


def beside(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command that runs beside this program, without input and output; raise OSError."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(  # pylint: disable=ansible-bad-function,consider-using-with
        list(argv), stdin=quiet, stdout=quiet, stderr=quiet
    )


def last_words(unit: str, since: float) -> str:
    """Return the last fatal line that a unit's processes wrote to the journal since a time (s), else their last line.

    What systemd wrote about the unit is left out; the result is empty if its processes wrote nothing.
    """
    name = unit if "." in unit else f"{unit}.service"
    own = [f"_SYSTEMD_UNIT={name}", f"--since=@{int(since)}", "--output=cat", "--no-pager"]
    lines = [line.strip() for line in run(["journalctl", *own], check=False).stdout.splitlines() if line.strip()]
    found = [match for line in lines if (match := FATAL.search(line))]
    quoted = [(match[1] or match[2] or "").replace('\\"', '"') for match in found]
    text = [*lines[-1:], *quoted][-1:] or [""]
    return "".join(letter if letter.isprintable() else "?" for letter in text[0][:LONGEST])


def run_json(argv: Sequence[str]) -> Any:
    """Run a command and parse its JSON output, else raise HostError; iproute2 prints nothing for an empty list."""
    printed = run(argv).stdout
    try:
        return json.loads(printed or "[]")
    except ValueError as error:
        raise HostError(f"{' '.join(argv)}: printed no JSON, but {printed[:80]!r}") from error


def is_active(unit: str) -> bool:
    return run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0


def links(netns: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return ``ip -j -d address`` of this or another network namespace, keyed by interface name."""
    prefix = ["nsenter", f"--net={netns}"] if netns else []
    found = run_json([*prefix, "ip", "-j", "-d", "address", "show"])
    return {link["ifname"]: link for link in found if "ifname" in link}


def addresses(link: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the global addresses with prefix of an interface from its entry of :func:`links`."""
    lasting = [entry for entry in link.get("addr_info", []) if entry.get("scope") == "global"]
    return tuple(f"{entry['local']}/{entry['prefixlen']}" for entry in lasting)


def wait_for(probe: Callable[[], T | None], timeout: float, step: float = 0.2) -> T | None:
    """Call ``probe`` until its result is true, for at most ``timeout`` seconds; return the last result."""
    deadline = time.monotonic() + timeout
    while True:
        answer = probe()
        if answer or time.monotonic() >= deadline:
            return answer
        time.sleep(step)


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file, or None if it cannot be read (sysfs returns EINVAL for empty slots)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_state(path: Path) -> dict[str, Any]:
    """Return the JSON object that an earlier run wrote to a file; empty only if the file does not exist.

    Raise HostError for an unreadable file: otherwise the state before the first change would be lost.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise HostError(explain(error, path)) from error
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise HostError(
            f"{path}: not a JSON object, so what this host had before the first change is unknown. Restore the file"
            " from a backup, or delete it if the present state is the one to restore later."
        )
    return found


def require_writable(paths: Iterable[Path]) -> None:
    """Raise OSError if a file, or the directory that will contain it, is on a read-only file system."""
    for path in paths:
        existing = next(each for each in (path, *path.parents) if each.exists())
        if os.statvfs(existing).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def make_parents(path: Path) -> None:
    """Create the directories above a file with mode 0755, whatever the umask: networkd is an ordinary user."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        parent.chmod(0o755)


def stage(path: Path, content: str, mode: int) -> Path:
    """Write ``content`` durably to a hidden file beside ``path``; renaming it to ``path`` then needs no disk space.

    The file has a name of its own: with a common name, a run could publish what another one writes at the same time.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}.gb10-new")
    try:
        make_parents(path)
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        raise HostError(f"Cannot write {explain(error, path)}") from error
    return staged


def sync_directory(path: Path) -> None:
    """Make renames inside a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, content: str, mode: int = 0o644) -> None:
    """Replace a whole file atomically."""
    stage(path, content, mode).replace(path)
    sync_directory(path.parent)


def differs(path: Path, content: str, mode: int) -> bool:
    """Tell whether a file has other content or another mode."""
    try:
        return path.read_text(encoding="utf-8") != content or path.stat().st_mode & 0o7777 != mode
    except (OSError, UnicodeDecodeError):
        return True


def package_files(module: str, library: Path = HOST_LIBRARY) -> dict[Path, str]:
    """Return the sources of a module and of everything that it imports from this package, by their path on the host.

    ``module`` is its name below module_utils, such as ``_fabric.virtual_functions``. It runs on the host as
    ``python3 -m gb10._fabric.virtual_functions`` with PYTHONPATH=/usr/local/lib. The import loader provides the
    sources, because Ansible sends a module to the host as a zip file. Raise HostError if a source is missing.
    """
    package = __name__.rsplit(".", 2)[0]
    sources: dict[str, str] = {}
    waiting = [f"{package}.{module}"]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _source_of(name)
            waiting += _imported(name, sources[name])
    directory = library / HOST_PACKAGE
    files = {name.removeprefix(f"{package}.").replace(".", "/"): source for name, source in sources.items()}
    return {directory / f"{path}.py": source for path, source in sorted(files.items())}


@functools.cache
def _imported(name: str, source: str) -> tuple[str, ...]:
    """Return the full names of the modules that ``source`` imports relatively; this collection uses no other form."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            parent = name.rsplit(".", node.level)[0] + (f".{node.module}" if node.module else "")
            inner = [f"{parent}.{alias.name}" for alias in node.names]
            found += [each if node.module is None or _is_module(each) else parent for each in inner]
    return tuple(found)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _source_of(name: str) -> str:
    spec = importlib.util.find_spec(name)
    loader: Any = spec.loader if spec else None
    source = loader.get_source(name) if hasattr(loader, "get_source") else None
    if not source:
        raise HostError(f"{name}: its source is missing, so it cannot be installed on the host")
    # zipimport returns text; the loader of ansible-core's collections returns bytes
    return source.decode() if isinstance(source, bytes) else str(source)


# Stop NetworkManager from managing the fabric's interfaces.

NETWORK_MANAGER_DIRECTORY = Path("/etc/NetworkManager")
NETWORK_MANAGER = "NetworkManager.service"


def unmanaged(names: Collection[str]) -> str:
    """Return the drop-in that makes interfaces unmanaged (NetworkManager.conf(5), unmanaged-devices)."""
    return "[keyfile]\nunmanaged-devices+=" + ";".join(f"interface-name:{name}" for name in names) + "\n"


def reload_network_manager() -> None:
    """Make NetworkManager, if it runs, reload the list of unmanaged interfaces; other connections are not affected."""
    if is_active(NETWORK_MANAGER):
        run(["nmcli", "general", "reload", "conf"])
