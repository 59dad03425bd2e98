# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove secrets from text before it leaves a machine.

The sources of a bundle are an allow-list, so most secrets are never read. This removes those that end up in logs and
configuration: by their known value, by their shape, and by the name before or after them. Doubt removes: a bundle that
lacks a word can be used, and a published token cannot be taken back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import quote

REMOVED = "<removed>"
SHOWN_ENVIRONMENT = ("NCCL_", "GLOO_", "UCX_", "CUDA_", "NVIDIA_", "TORCH_", "SGLANG_HOST_IP", "MAX_JOBS")
"""The beginnings of the names of variables whose values are shown. All other values are removed."""
SHORTEST = 4
"""A known value that is shorter than this would remove ordinary words."""
LONGEST_NAME = 128
LONGEST_LINE = 65536
"""Characters of a name and of a line that are read, because the time grows with the square of their number. SGLang's
longest line, with all its arguments, has about 15,000."""

# Colours and links of a terminal hide a name. Programs write the escape character in several ways.
_TERMINAL = re.compile(
    r"(?:\x1b|\\{1,7}(?:u001[bB]|x1[bB]|033)|#033|\^\[)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,300}(?:\x07|\x1b\\)?)"
)

# ---- Names. "bypass", "compass" and the like are no passwords.
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PASSWORD = re.compile(r"passw(?:or)?ds?|passphrase|psk|(?<!by)(?<!com)(?<!over)(?<!sur)(?<!tres)pass|pwd|.+pw|cookie")
_SECRET_PART = re.compile(
    rf".*(?:{_PASSWORD.pattern}|secrets?|token|apikey|accesskey|accountkey|credentials?|dockerc(?:fg|onfigjson))"
    r"|authorization|dockerconfigjson|jwt|bearer|creds|otp"
)
# What may follow without making another thing of it: HF_TOKEN_READ, API_KEY_2, client-key-data.
_QUALIFIER = re.compile(r"\d+|value|read|write|ro|rw|old|new|prod|dev|data|base64|b|admin|plain|raw|string|str")
# An environment variable may end in any word, as in TOKEN_OF_ALICE. These words are about a secret.
_ABOUT = {
    "file",
    "path",
    "dir",
    "len",
    "length",
    "id",
    "ids",
    "limit",
    "usage",
    "count",
    "budget",
    "name",
    "type",
    "size",
}
_ABOUT |= {"ttl", "expiry", "timeout", "per", "max", "min", "num", "rate", "ratio", "mode", "enabled"}


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Return "password", "secret" or "" for what a name says about its value. A password may have spaces."""
    name = name[-LONGEST_NAME:]
    bare = name.strip("-.").lower()
    if bare in ("private", "pin", "sim-pin", "key", "auth", "x-auth") or re.search(r"_(?:auth|pat|tok)$", bare):
        return "secret"
    parts = [part.lower() for part in _PARTS.findall(name.replace("JSON", "json"))]
    upper = name.isupper() and parts and parts[-1] not in _ABOUT
    while len(parts) > 1 and _QUALIFIER.fullmatch(parts[-1]) and (parts[-1] != "data" or parts[-2] == "key"):
        parts.pop()
    last = parts[-1] if parts else ""
    if _PASSWORD.search(last) and _SECRET_PART.fullmatch(last):
        return "password"
    if _SECRET_PART.fullmatch(last) or (last == "key" and parts[1:] and "public" not in parts):
        return "secret"
    if last == "keys" and parts[-2:-1] and parts[-2] in ("api", "access", "account", "auth", "private", "secret"):
        return "secret"
    if upper and (any(map(_SECRET_PART.fullmatch, parts)) or "_API_KEY_" in name):
        return "secret"
    return ""


# ---- Values after a name.
_Q = r"(?:\\{0,7}[\"'`]|%2[27]|&quot;|&#3[49];)"
_QUOTED = rf"(?P<q>{_Q})(?:(?P=q)(?P=q)|(?!(?<!\\)(?P=q))[^\n])*+(?P=q)?"
_SCHEME = r"(?:(?:ApiKey|Basic|Bearer|Digest|Negotiate|Token)(?:[ \t]+|%20|\+))?"
_TYPE = r"(?:Optional\[str\]|str(?:ing)?(?: \| None)?|bytes|&(?:'\w+ )?str|String|SecretStr)"
_S = r"(?:\s|\\{1,7}t)*+"
# Bars of a table, also as JSON writes them, and what ends a value in a text that JSON has in one line.
_BAR = r"(?:[|\u2502\u2503\u2551]|\\{1,7}u25(?:0[23]|51))"
_NEXT = r"(?!\\{1,7}n)"
_BLOCK = r"(?![|>][-+\d]*(?:\s|\\{1,7}n|$))"
# Of every name: what is between it and its value. The last ones are tuples, cells, columns, and sentences or commands.
_PAIR = re.compile(
    rf"(?P<count>#(?:\w+ )?)?(?<![\w.-])(?P<name>(?:API )?[\w.-]++)(?P<sep>"
    rf"{_Q}?[\])]?{_S}(?::?\s*{_TYPE}\s*=|:=|=>|->|<-|[=!]=+|\+?=|:|%3A|%3D|&#61;){_S}"
    rf"|\((?={_Q})"
    rf"|(?P<tuple>{_Q}\s*,\s*)"
    rf"|(?P<cell>{_S}{_BAR}\s*)"
    rf"|(?P<column>(?:\t|\\{{1,7}}t| {{2}}){_S})"
    rf"|(?P<said>\s(?:(?:is|was|provided)(?::\s*|\s))?(?={_Q}{{0,2}}[^\s\"'`])))",
    re.I,
)
# What is within a mapping is found by its own names, unless it is short and has no quotes.
_MAPPING = re.compile(r"\{\s*(?:\}|$|[\"'\\`%&]|[\w.-]+\s*:\s)")
_INNER = re.compile(rf"\{{\s*{_Q}?(?:value|raw|plain){_Q}?\s*:\s*", re.I)
_VALUE = re.compile(
    rf"(?P<list>\[+[^\[\]\n]*\]*)|(?:[\w.]*[(\[{{<]+)?[bruf]{{0,2}}{_QUOTED}"
    rf"|\$?\{{[^{{}}\n]*\}}?|{_BLOCK}{_SCHEME}(?:{_NEXT}[^\s,}}\]])+",
    re.I,
)
_WORDS = re.compile(rf"{_BLOCK}(?:{_NEXT}[^,}}\]\n])+")
_CELL = re.compile(rf"(?:(?!{_BAR}){_NEXT}[^\n])+")
# A word of a sentence is a secret if it has a digit: "the password hunter2", "invalid token [a1b2c3d4]".
_SAID = re.compile(rf"[(\[<]?{_Q}{{0,2}}(?=[^\s\"'`]*\d)[^\s\"'`,]{{4,}}")
_RANDOM = re.compile(r"(?!\W*0x)(?=\S*[a-z])\S{8,}", re.I)
# Short numbers and these words are settings, counts and results, also "pass: 3 of 4 checks".
_RESULT = r"\d{1,3}(?:\.\d{1,4})?(?: of \d{1,3}(?: [a-z]+)?)?|true|false|yes|no|ok|null|none|nil|~"
_PLAIN = re.compile(rf"{_Q}?(?:{_RESULT})?{_Q}?[,;)]*", re.I)
_DONE = re.compile(rf"[\"'\\\\]*{_SCHEME}{REMOVED}", re.I)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# "#new-token: 1234" of SGLang's log is a count.
_COUNT = re.compile(r"(?<![a-z])(?:max|min|num|per|total)[-_]token", re.I)


def _harmless(pair: re.Match[str], value: str) -> bool:
    if _DONE.match(value):
        return True
    if re.search("passw|psk|passphrase", pair["name"], re.I):
        return not value
    if (pair["count"] or _COUNT.search(pair["name"])) and _NUMBER.fullmatch(value):
        return True
    # The working directory in the environment and in sudo's log.
    return (pair["name"] in ("PWD", "OLDPWD") and value[:1] == "/") or bool(_PLAIN.fullmatch(value))


def _value_at(line: str, pair: re.Match[str], kind: str) -> re.Match[str] | None:
    """Return the value of a name, or None if what follows has names of its own or is no value."""
    sep, begin, flag = pair["sep"], pair.end(), pair["name"].startswith("--")
    value = _VALUE.match(line, begin)
    if pair["cell"] is not None:
        return _CELL.match(line, begin)
    if flag and line[begin : begin + 1] == "-":
        return None
    if pair["said"] is not None and not flag:
        said = _SAID.match(line, begin)
        certain = pair["name"].lower() not in ("key", "secret", "auth", "private", "pin")
        value = said if said and (kind == "password" or (certain and _RANDOM.match(said[0]))) else None
    elif pair["tuple"] is not None and not flag:
        before = line[max(0, pair.start() - 9) : pair.start()].rstrip("bru\\\"'`")
        value = value if before.endswith(("(", "[")) else None
    elif "=" not in sep and _MAPPING.match(line, begin):
        inner = _INNER.match(line, begin)
        value = _VALUE.match(line, inner.end()) if inner else None
    elif value and ":" in sep and "=" not in sep and not value["q"] and not value["list"]:
        # In YAML in one line every unquoted value goes up to the next comma or bracket.
        value = _WORDS.match(line, begin) if kind == "password" or "{" in line else value
    return value


def _named(line: str) -> str:
    """Return a line without the values of the secret names in it."""
    kept, at, begin = [], 0, 0
    while pair := _PAIR.search(line, begin):
        begin = pair.end()
        value = _value_at(line, pair, kind) if (kind := _kind(pair["name"])) else None
        if value and not _harmless(pair, value[0].strip()):
            kept += [line[at:begin], "" if pair["sep"][-1] in " =\t" else " ", REMOVED]
            at = begin = value.end()
        elif pair["said"] is not None:
            # The next word may be a name, too.
            begin = pair.end("name")
    return "".join((*kept, line[at:]))


# ---- A name and a value with labels: the environment of a container, a header, an element of XML, in both orders.
_LABEL = rf"\b(?:name|key){_Q}?\s*[:=]\s*{_Q}?(?P<name>[\w.-]+){_Q}?"
_LABEL_BEFORE = re.compile(_LABEL, re.I)
_NEAR = re.compile(r"[^{}<>\n]{0,80}")
_VALUE_LABEL = re.compile(rf"\bvalue{_Q}?\s*[:=]\s*", re.I)
_LABEL_AFTER = re.compile(rf"[^{{}}<>\n]{{0,80}}?{_LABEL}", re.I)
_LABEL_LAST = re.compile(rf"{_LABEL}[\\\"'}},;)\]\s]*$", re.I)


def _labelled(line: str) -> str:
    """Return a line without the values that are labelled so and belong to a secret name."""
    kept, at, begin = [], 0, 0
    while label := _VALUE_LABEL.search(line, begin):
        begin = label.end()
        value = _VALUE.match(line, begin)
        if not value or _MAPPING.match(line, begin):
            continue
        before = list(_LABEL_BEFORE.finditer(line, max(at, label.start() - 200), label.start()))
        if before and not _NEAR.fullmatch(line, before[-1].end(), label.start()):
            before = []
        after = _LABEL_AFTER.match(line, value.end())
        if any(found and _kind(found["name"]) for found in (*before[-1:], after)):
            kept += [line[at:begin], REMOVED]
            at = begin = value.end()
        elif not value["q"]:
            begin = value.end()
    return "".join((*kept, line[at:]))


# ---- Shapes.
# A token begins a word, also after a newline or tab as JSON writes them.
_B = r"(?:\b|(?<=\\[nrt]))"
# The words of an HTTP header; only parameters have quotes.
_PARAMETER = r"=(?:\"[^\"\n]*\"|[^\s,\"'}\]\\=]*)"
_WORD = rf"(?:[^\s,\"'}}\]\\=]|{_PARAMETER})+"
# A key file in PEM or the like, or one of PuTTY.
_PRIVATE = r"[\w ]*(?:PRIVATE KEY|Static key)[^\n-]*-{4,5}"
_BEGIN, _END = rf"(?:-{{4,5}} ?BEGIN {_PRIVATE}|Private-Lines:)", rf"(?:-{{4,5}} ?END {_PRIVATE}|Private-MAC: \w+)"
_HOOKS = r"hooks\.slack\.com/\w+|discord(?:app)?\.com/api(?:/v\d+)?/webhooks|webhook\.office\.com/\w+"
# An end is optional where a long text without it would be read again from each of its lines or words.
_SHAPES = (
    re.compile(rf"{_BEGIN}.*?(?:{_END}|\Z)", re.S),
    # The end of a key whose beginning is missing, as in the last lines of a log, which a program may indent.
    re.compile(
        r"(?:^(?:[^\n]*[ \t])?[A-Za-z0-9+/=]{16,}\n)++(?:[^\n]*?[A-Za-z0-9+/=]{1,15}\n)?"
        rf"(?P<end>[^\n]*{_END})?",
        re.M,
    ),
    # 32 bytes in base64, as the keys of WireGuard and those with which Kubernetes encrypts its Secrets.
    re.compile(r"(?<![\w+/-])[A-Za-z0-9+/]{43}=(?![\w+/=-])"),
    # A password that is hashed as in /etc/shadow or by htpasswd.
    re.compile(r"\$(?:[1567y]|2[abxy]?|gy|apr1|argon2\w*)\$[^\s:\"',]{8,}"),
    # In base64: a key in PEM, a token of Hugging Face, GitHub, GitLab, NVIDIA or of the form sk-, and a JSON web token.
    re.compile(rf"(?:LS0tLS1|{_B}(?:aGZf|Z2hwX|Z2xwYXQt|bnZhcGkt|c2st|ZXlK))[A-Za-z0-9+/]{{20,}}={{0,2}}"),
    re.compile(r"(?P<name>\$ANSIBLE_VAULT;[\w.;-]+)(?P<gap>(?:\s|\\n)+)[0-9a-f]{8,}(?:(?:\s|\\n)+[0-9a-f]{8,})*+"),
    re.compile(rf"{_B}K10[0-9a-f]{{32,}}::\S+"),
    # "hf_chat_template_name" is an argument of SGLang.
    re.compile(
        rf"{_B}(?:hf_(?![a-z]+(?:_[a-z]+)*\b)|gh[oprsu]_|github_pat_|glpat-|nvapi-|sk-|xox[a-z]-|xapp-|npm_|pypi-"
        r"|dckr_pat_|hvs\."
        r"|ya29\.|AIza|AGE-SECRET-KEY-1|tskey-|syt_|gsk_|xai-|SG\.|[sr]k_(?:live|test)_|r8_|fw_|pplx-|csk-|lin_api_"
        r"|dop_v1_|shpat_|glptt-|gldt-|glrt-|glsa_|nvapi-stg-|AKCp|rk-|sbp_"
        r"|dapi(?=[0-9a-f]{30})|wandb_v1_)[\w-]{8,}"
    ),
    # Of AWS, of kubeadm, and of services that take a key of 40 hexadecimal digits after their name.
    re.compile(rf"{_B}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{12,}}\b"),
    re.compile(r"(?:(?<![\w.:/-])|(?<=\\[nrt]))[a-z0-9]{6}\.[a-z0-9]{16}(?![\w.-])"),
    re.compile(r"(?P<name>\bwandb[\w :=/-]{0,20}?)(?P<gap>\b)[0-9a-f]{40}\b"),
    re.compile(rf"{_B}eyJ[\w-]{{8,}}+(?P<end>\.[\w-]+\.[\w-]*)?"),
    re.compile(
        rf"(?P<name>authorization)(?P<gap>{_Q}?\s*[:=]\s*{_Q}?"
        r"(?P<scheme>(?:ApiKey|Basic|Bearer|Digest|Negotiate|Token)[ \t]+)?+)"
        rf"(?!<removed>){_WORD}(?(scheme)|(?:[ \t]+{_WORD})?)(?:,[ \t]*[\w-]+{_PARAMETER}+)*",
        re.I,
    ),
    re.compile(r"(?<=Bearer )[^\s\"',]+|(?<=Basic )[A-Za-z0-9+/=]{8,}", re.I),
    # A password may have a slash; a port may be followed by one.
    re.compile(r"(?<=://)(?:[^/\s:@]*:(?!\d{1,5}/)[^\s@]{1,200}|[^/\s:@]{20,})(?=@)"),
    re.compile(rf"(?P<name>{_HOOKS})(?P<gap>/)[^\s\"'<>,)}}\]]+", re.I),
    re.compile(r"(?<=/bot)\d{6,}:[\w-]{20,}"),
    # The signature of a signed URL is all that its user needs.
    re.compile(
        r"(?P<name>\bX-(?:Amz|Goog)-Signature|(?:[?&]|u0026)(?:signature|sig))"
        rf"(?P<gap>{_Q}?\s*(?:[:=]|%3D)\s*{_Q}?)[^\s\"'<>&\\,]+",
        re.I,
    ),
    # Commands: "docker login -u robot -p …", "sshpass -p…", "ipmitool -P …", "mysql -p…"; a number after -p is a port.
    re.compile(
        r"(?P<name>\b(?:sshpass|ipmitool|mysql\w*|mariadb[\w-]*|(?:docker|podman|helm|oras|skopeo)\b[^\n]{0,80}?\slogin)\b"
        r"[^\n]{0,200}?\s-[pP])"
        r"(?P<gap>\s*)(?!<removed>|\d{1,5}\b)\S+"
    ),
    re.compile(r"(?P<name>--from-literal[= ][\w.-]+)(?P<gap>=)\S+"),
    # Given to the standard input of a program that asks for a password.
    re.compile(
        r"(?P<name>\b(?:echo|printf)(?: -\w+)*)(?P<gap>\s+)[^|\n]{1,200}"
        r"(?=\|\s*(?:sudo|(?:ch)?passwd)\b|\|[^|\n]{1,200}--(?:[a-z]+-)?stdin\b)"
    ),
    # A line of .netrc.
    re.compile(r"(?P<name>^[ \t]*(?:password|passwd))(?P<gap>[ \t]+)\S+$", re.M),
    re.compile(r"(?P<name>\s-u|\s--user|\s--(?:src-|dest-)?creds)(?P<gap>[= ]\s*[^\s:]+:)(?!<removed>|\d+\b)\S+"),
    re.compile(r"(?P<name>\bwpa_passphrase\s+\S+)(?P<gap>\s+[\"']{0,2})[^\s\"',]{4,}", re.I),
)

# ---- Several lines.
# Before the lines of the journal, of containerd, of klog and of SGLang.
_PREFIX = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ [^\s\[]+\[\d+\]: |\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] "
    r"|[IWEF]\d{4} [\d:.]+ +\d+ \S+\] |\[\d{4}-[^\]]*\] "
)
# A name whose value is below it, or begins in its line and may continue below it.
_OPEN = re.compile(rf"(?P<head>.*?(?<![\w.-])(?P<name>[\w.-]+){_Q}?\s*[:=])\s*(?:[|>][-+\d]*|[\[(])?\s*$")
_LINE = re.compile(rf"\s*(?:- )?{_Q}?(?P<name>[\w.-]+){_Q}?\s*:(?P<value>\s.*)$")
_FLAG_LAST = re.compile(rf"(?<![\w-])(?P<name>--[\w-]+){_Q}?,?\s*$")
_ITEM = re.compile(rf"(?P<head>\s*(?:- )?{_Q}?)(?!-)[^\s\"',]")
# WireGuard of netplan: "keys: {public: ..., shared: ...}", in one line or in several.
_KEYS_BELOW = re.compile(r"\s*(?:- )?[\"']?keys[\"']?\s*:\s*\{?\s*$")
_SHARED = re.compile(r"(?P<head>(?:^|[\s{,\-])[\"']?shared[\"']?\s*:\s+)[^\s,}]+")
_SHARED_FLOW = re.compile(r"(?<=keys)[\"']?\s*:\s*\{[^{}\n]*")
_RULE = re.compile(r"(?=.*[-\u2500\u2501\u2550])[-=+:|\s\u2500-\u257f]+$")
_BARS = re.compile(_BAR)
_GAP = re.compile(r"( {2,})")
_NEWLINE = re.compile(r"\\{1,7}n")


class _Table:
    """Removes the columns of a table that have a secret name at their head."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._barred: set[int] = set()
        self._spaced: set[int] = set()

    def row(self, line: str) -> str:
        """Return a line without the cells of such columns."""
        if _RULE.match(line):
            self._barred |= {place for place, cell in enumerate(self._head) if _kind(cell.strip())}
            return line
        self._head = _BARS.split(line)
        if len(self._head) > 2:
            for place in self._barred & set(range(len(self._head))):
                line = line.replace(self._head[place], f" {REMOVED} ") if self._head[place].strip() else line
            return line
        self._barred = set()
        return self._aligned(line)

    def _aligned(self, line: str) -> str:
        """Do the same where spaces align the columns, below a head in capitals. Cells are counted from the right."""
        cells = _GAP.split(line)
        if not line.strip():
            self._spaced = set()
        for place in self._spaced:
            if place >= -len(cells) and cells[place].strip():
                cells[place] = REMOVED
        found, capitals = set(), False
        for place, cell in enumerate(reversed(cells[::2])):
            word = re.split(r"[\"' ]", cell.rstrip("\"'} "))[-1]
            if _kind(word):
                found.add(-2 * place - 1)
            elif not word.isupper() and word != REMOVED:
                break
            capitals = capitals or (word.isupper() and not _kind(word))
        self._spaced |= found if capitals and len(cells) > 1 else set()
        return "".join(cells)


class _Lines:
    """Removes the values of secret names from lines, and the lines that continue such a value."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._table = _Table()
        # The column below which lines belong to a removed value, and whether items at this column do, too.
        self._below: int | None = None
        self._opened = False
        # The column of "keys:" of WireGuard.
        self._keys: int | None = None
        # The place of a line with "value:" whose name may follow; whether a secret name waits for its value.
        self._value_at: int | None = None
        self._entry = self._flag = False

    def without(self, lines: list[str]) -> list[str]:
        """Return the lines that remain."""
        for whole in lines:
            prefix = found[0] if (found := _PREFIX.match(whole)) else ""
            self._add(prefix, whole[len(prefix) :])
        return self._kept

    def _add(self, prefix: str, line: str) -> None:
        indent = len(line) - len(line.lstrip())
        item = line.lstrip().startswith("- ")
        column = indent + 2 * item
        if self._below is not None:
            if indent > self._below or not line.strip() or (self._opened and indent == self._below and item):
                return
            self._below = None
        if self._keys is not None and indent <= self._keys and line.strip():
            self._keys = None
        if item or "{" in line or line.lstrip().startswith("}"):
            self._entry, self._value_at = self._entry and "{" in line and not item, None
        label = [*_VALUE_LABEL.finditer(line)][-1:]
        line = self._redacted(line, column, label[0].end() if label else 0)
        if self._value_at is not None and any(_kind(found["name"]) for found in _LABEL_BEFORE.finditer(line)):
            value = self._kept[self._value_at]
            after = [found.end() for found in _VALUE_LABEL.finditer(value)][-1]
            self._kept[self._value_at :] = [value[:after] + REMOVED]
            self._value_at = None
        elif (found := _LABEL_LAST.search(line)) and _kind(found["name"]):
            self._entry = True
        elif label:
            self._value_at = len(self._kept)
        if _KEYS_BELOW.match(line):
            self._keys = column
        self._kept.append(prefix + line)

    def _redacted(self, line: str, column: int, label_end: int) -> str:
        """Return a line of its own, and remember what the next lines may continue."""
        if self._flag and (found := _ITEM.match(line)):
            self._flag = False
            return found["head"] + REMOVED
        if self._entry and label_end:
            self._entry, self._below, self._opened = False, column, False
            return line[:label_end] + REMOVED
        if (found := _OPEN.match(line)) and _kind(found["name"]):
            self._below, self._opened = column, True
            return f"{found['head']} {REMOVED}"
        self._flag = bool((found := _FLAG_LAST.search(line)) and _kind(found["name"]))
        line = _within(self._table.row(line), self._keys is not None)
        scalar = _LINE.match(line)
        if (
            scalar
            and REMOVED in scalar["value"]
            and _kind(scalar["name"])
            and not _MAPPING.match(scalar["value"].strip())
        ):
            self._below, self._opened = column, False
            if scalar["name"].lower() != "authorization":
                line = line[: scalar.start("value")] + f" {REMOVED}"
        return line


def _within(line: str, keys: bool) -> str:
    line = _SHARED_FLOW.sub(lambda match: _SHARED.sub(rf"\g<head>{REMOVED}", match[0]), line)
    if keys:
        line = _SHARED.sub(rf"\g<head>{REMOVED}", line)
    line = _named(_labelled(line))
    # The lines of a text that JSON or Python has in one line.
    mark = _NEWLINE.search(line)
    return mark[0].join(_Lines().without(line.split(mark[0]))) if mark else line


# All values of a Secret of Kubernetes, in one line or in several.
_SECRET = re.compile(rf"\bkind{_Q}?\s*:\s*{_Q}?Secret\b")
_DATA = re.compile(rf"(?P<name>\b(?:stringData|data){_Q}?\s*:)\s*\{{[^{{}}]+\}}")
_DATA_BELOW = re.compile(
    r"^(?P<name>(?P<indent> *)(?P<item>- )?(?:stringData|data):)[ \t]*(?:\n(?:(?P=indent)(?(item)  ) +.*|[ \t]*$))++",
    re.M,
)
_ELEMENT = re.compile(r"<(?P<name>[\w:.-]+)>(?P<gap>)[^<\n]+")


def _shaped(match: re.Match[str]) -> str:
    parts = match.groupdict()
    if "end" in parts and not parts["end"]:
        return match[0]
    return f"{parts['name']}{parts['gap']}{REMOVED}" if "name" in parts else REMOVED


def _element(match: re.Match[str]) -> str:
    return f"<{match['name']}>{REMOVED}" if _kind(match["name"]) else match[0]


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return the text without private keys, tokens, passwords, ``known`` secrets (plain or encoded) and colours."""
    text = _TERMINAL.sub("", "\n".join(map(_shortened, text.split("\n"))))
    for secret in sorted({s.strip() for s in known if len(s.strip()) >= SHORTEST}, key=len, reverse=True):
        encoded = (base64.b64encode(secret.encode()).decode(), quote(secret, safe=""), json.dumps(secret)[1:-1])
        for form in dict.fromkeys((secret, *encoded)):
            text = text.replace(form, REMOVED)
    if _SECRET.search(text):
        for data in (_DATA, _DATA_BELOW):
            text = data.sub(rf"\g<name> {REMOVED}", text)
    for shape in _SHAPES:
        text = shape.sub(_shaped, text)
    return "\n".join(_Lines().without(_ELEMENT.sub(_element, text).split("\n")))


def _shortened(line: str) -> str:
    """Return a line without what is beyond the longest, and without a value at this end, whose name may be beyond."""
    if len(line) <= LONGEST_LINE:
        return line
    value = _VALUE_LABEL.search(line, LONGEST_LINE - 1000, LONGEST_LINE)
    kept = line[: value.start() if value else LONGEST_LINE]
    return f"{kept} [{len(line) - len(kept)} more characters]"


def end(text: str, limit: int) -> str:
    """Return the last whole lines of a text without secrets that fit ``limit`` characters."""
    return text if len(text) <= limit else f"[only the last {limit} characters]\n{text[-limit:].partition(chr(10))[2]}"
