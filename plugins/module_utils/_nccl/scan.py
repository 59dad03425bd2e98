# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find NCCL's statements in a byte stream of any size, regardless of surrounding text. Private to the collection.

Few lines of a serving log come from NCCL, so chunks are searched as bytes and only hits become Python objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .statements import LAST_WORDS, LONGEST

# From 128 KiB on, glibc takes each chunk from the kernel, page by page: reading then costs twice the time.
CHUNK = (1 << 17) - (1 << 12)
# NCCL cuts its own lines at 1024 bytes. A line longer than this limit is not text; it is read in pieces.
_LONGEST = 1 << 20

# "NCCL INFO …", statements whose prefix was torn off, PyTorch's watchdog (ProcessGroupNCCL.cpp), and the lines that an
# engine prints when it starts: SGLang's server_args (its first unset option, "None, name=") and vLLM's three. All
# alternatives start with the same literal letter, because re then finds candidates four times faster.
_SERVER_ARGS = b"server_args=ServerArgs("
_VLLM = (
    rb"FO \d\d-\d\d [\d:]+ \[?\w+\.py:\d+\] "
    rb"(?:vLLM API server version|non-default args|Initializing an?(?: V\d)? LLM engine)"
)
_HIT = re.compile(
    rb"N(?:CCL(?: (?:INFO|WARN|ATTN|version|error)|\.cpp:)|ET(?:/[A-Za-z]| plugin)|one, [a-z]\w+=|" + _VLLM + rb")"
)
_VLLM_START = re.compile(rb"N" + _VLLM)
# A burst continues while NCCL occurs within _NEAR bytes after it. It grows by _BURST bytes at first, then doubles.
_NEAR, _BURST = 256, 1024

_LAST_WORDS = tuple(word.encode() for word in LAST_WORDS)
LEVELS = re.compile(rb"NCCL (?:INFO|WARN|ATTN)")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ESCAPED = {"&gt;": ">", "&lt;": "<", "\\u003e": ">", "\\u003c": "<", "\\t": "\t", "\\u001b": "\x1b", "\\/": "/"}
# NCCL 2.32 introduced ATTN.
_LEVEL = re.compile(r"NCCL (INFO|WARN|ATTN)\b ?")
# host:pid:tid [cudaDev] at the end of the text before "NCCL INFO"; the host may be empty, numeric or redacted.
_ORIGIN = re.compile(r"([^\s:\"'|()\[\]{}]*):(\d+):(\d+)(?:[ \t]*\[(-?\d+)\])?")
# It begins with fixed characters, because re finds those four times faster than a set of them. Times before 2000 stay.
TIME = re.compile(rb"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.,]*(?:Z|[+-]\d\d:?\d\d)?")
_BARE_DEVICE = re.compile(r"\[(-?\d+)\]\s*$")
_LINE_END = re.compile(rb"(?:\\+r)?(?:\\+n|\\+u000[aA])")
_BEFORE = 80
_POD = re.compile(r"\[pod/([^/\]]+)/([^\]/]+)\]|^\[?([a-z0-9.-]+ [a-z0-9.-]+)\] ")


class Origin(NamedTuple):
    """The writer of a statement; empty strings where the log does not say."""

    pod: str
    host: str
    pid: str
    tid: str
    device: str


class Statement(NamedTuple):
    """One NCCL statement: ``level`` is INFO, WARN, ATTN or empty (no prefix: torn, stripped, or printed bare).

    The text of WARN and ATTN contains the level and what precedes it.
    """

    origin: Origin
    level: str
    text: str


NOBODY = Origin("", "", "", "", "")


def candidate_lines(read: Callable[[int], bytes], last_words: list[bytes], size: int = CHUNK) -> Iterator[list[bytes]]:
    """Yield, per chunk, the lines that may contain an NCCL statement; where hits are dense, whole blocks of lines.

    ``read(n)`` returns at most n bytes and ``b""`` at the end, as a binary file does. ``last_words`` gets the
    lines at the end of the log that may say why a process ended.
    """
    rest = last = b""
    while chunk := read(size):
        start = 0
        if rest:
            # Copy only the line that spans two chunks.
            start = chunk.find(b"\n") + 1 or len(chunk)
            rest += chunk[:start]
            if chunk[start - 1 : start] != b"\n" and len(rest) < _LONGEST:
                continue
            if lines := _hits(rest, 0, len(rest)):
                yield lines
        end = chunk.rfind(b"\n", start) + 1 or start
        if lines := _hits(chunk, start, end):
            yield lines
        rest, last = chunk[end:], chunk[start:end]
    if rest and (lines := _hits(rest, 0, len(rest))):
        yield lines
    ends = (line for line in (last + rest).split(b"\n") if any(map(line.__contains__, _LAST_WORDS)))
    last_words += [line for line in ends if not _HIT.search(line)]


def _hits(buffer: bytes, position: int, end: int) -> list[bytes]:
    """Return the lines around the hits; statements come in bursts, and each burst becomes one block."""
    blocks: list[bytes] = []
    search = _HIT.search
    while hit := search(buffer, position, end):
        start = buffer.rfind(b"\n", position, hit.start()) + 1 or position
        position, size = buffer.find(b"\n", hit.end(), end) + 1 or end, _BURST
        if hit[0].startswith((b"None", b"NFO")):
            # The rest of this line is not needed, and it may contain a key.
            at = buffer.find(_SERVER_ARGS, start, position)
            if at >= 0 or hit[0].startswith(b"NFO"):
                blocks.append(buffer[start : hit.end() if at < 0 else at + len(_SERVER_ARGS)] + b"\n")
            continue
        while buffer.find(b"NCCL", position, min(position + _NEAR, end)) >= 0:
            position, size = buffer.find(b"\n", min(position + size, end - 1), end) + 1 or end, size * 2
        blocks.append(buffer[start:position])
    return blocks


def parse_origin(head: str) -> Origin:
    """Return the writer of a statement, from the text before ``NCCL INFO``."""
    end = head[-160:]
    found = next(iter(reversed(list(_ORIGIN.finditer(end)))), None)
    label = _POD.search(head) if "[" in head else None
    pod = (label[1] or label[3] or "") if label else ""
    if found is None:
        bare = _BARE_DEVICE.search(head)
        return NOBODY._replace(pod=pod, device=bare[1] if bare else "")
    return Origin(pod, found[1], found[2], found[3], found[4] or "")


def without_time(text: bytes) -> bytes:
    """Return a text without time stamps, so that equal lines are known."""
    return TIME.sub(b"", text)


def plain(line: bytes) -> str:
    """Return a line as text without ANSI colours, line ends and the escapes of Docker's JSON files and of HTML."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if "\\u00" in text or "&gt;" in text or "\\/" in text:
        for escape, character in _ESCAPED.items():
            text = text.replace(escape, character)
    return _ANSI.sub("", text) if "\x1b" in text else text


def parts(line: bytes) -> list[bytes]:
    """Return the lines of a log that stands in one string, as in JSON, or the line itself."""
    return _LINE_END.split(line) if b"\\" in line else [line]


def speaks(line: bytes) -> bool:
    """Tell whether a line may name NCCL; the start of a server and the last words are other questions."""
    return b"CCL" in line or b"NET" in line or b"ocket/" in line


def engine_start(line: bytes) -> int:
    """Return where SGLang (0.4 to 0.5.16) or vLLM (0.6 to 0.15) says in a line that it starts, or -1."""
    at = line.find(_SERVER_ARGS)
    found = _VLLM_START.search(line) if at < 0 and b".py:" in line else None
    return found.start() if found else at


def quoted(line: bytes) -> str:
    """Return a line in the form in which a cause quotes it."""
    return line.decode("utf-8", "replace").strip()[:400]


def split_line(line: bytes) -> list[Statement]:
    """Return the statements of one line; it has several if the lines of two ranks ran into each other."""
    text = plain(line)
    levels = list(_LEVEL.finditer(text))
    if not levels:
        return [Statement(NOBODY, "", text)]
    statements = []
    for index, level in enumerate(levels):
        begin = levels[index - 1].end() if index else 0
        origin = parse_origin(text[begin : level.start()])
        stop = levels[index + 1].start() if index + 1 < len(levels) else len(text)
        body = text[level.end() : stop]
        if stop < len(text):
            body = _without_next_head(body, parse_origin(body))
        if level[1] != "INFO":
            # Some causes are known by the source file, which precedes the level.
            body = text[max(begin, level.end() - _BEFORE) : level.end()] + body
        statements.append(Statement(origin, level[1], body[:LONGEST]))
    return statements


def _without_next_head(body: str, following: Origin) -> str:
    """Remove the next statement's ``host:pid:tid [dev]`` from the end of the statement that precedes it in the line."""
    if not following.pid:
        return body
    at = body.rfind(f":{following.pid}:{following.tid}")
    # If two processes write to the same line, no space separates the host name from the word before: "Socketspark1".
    # NcclLog separates them.
    return body[:at]
