# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove secrets from text before it leaves a machine.

The sources of a bundle are an allow-list, so most secrets are never read. This removes those that end up in logs and
configuration: by their shape, by the name before them, and by their known value.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable
from urllib.parse import quote

REMOVED = "<removed>"
SHOWN_ENVIRONMENT = ("NCCL_", "GLOO_", "UCX_", "CUDA_", "NVIDIA_", "TORCH_", "SGLANG_HOST_IP", "MAX_JOBS")
"""The beginnings of the names of variables whose values are shown. All other values are removed."""
SHORTEST = 4
"""A known value that is shorter than this would remove ordinary words."""

# "bypass", "compass" and the like are no passwords.
_PASS = r"(?<!by)(?<!com)(?<!over)(?<!sur)(?<!tres)pass"
_WORDY = rf"passw(?:or)?ds?|passphrase|psk|{_PASS}|pwd|[a-z]+pw|cookie"
_KEYS = r"(?:api|access|account)[-_]?keys?|(?:pre)?shared[-_]?key|key-data|private(?:[-_]?key)?"
_NAMES = rf"{_WORDY}|secrets?|token|{_KEYS}|credentials?|dockerc(?:fg|onfigjson)"
_NAME = rf"[\w.-]*(?:{_NAMES})|(?:\w+_)?auth|(?:[\w.-]*[-_.])?key|wep-key\d|\w+_pat|(?:sim-)?pin"
# A quote that may be escaped, because JSON is in a string of JSON.
_Q = r"(?:\\{0,3}[\"'])?"
_QUOTED = r"\\{1,3}\"[^\"\n]*\"|\"(?:[^\"\\\n]|\\.)*+(?:\"|$)|'(?:[^'\\\n]|\\.|'')*+(?:'|$)"
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
    re.compile(r"(?:LS0tLS1|\b(?:aGZf|Z2hwX|Z2xwYXQt|bnZhcGkt|c2st|ZXlK))[A-Za-z0-9+/]{20,}={0,2}"),
    re.compile(r"(?P<name>\$ANSIBLE_VAULT;[\w.;-]+)(?P<gap>(?:\s|\\n)+)[0-9a-f]{8,}(?:(?:\s|\\n)+[0-9a-f]{8,})*+"),
    re.compile(r"\bK10[0-9a-f]{32,}::\S+"),
    # "hf_chat_template_name" is an argument of SGLang.
    re.compile(
        r"\b(?:hf_(?![a-z]+(?:_[a-z]+)*\b)|gh[oprsu]_|github_pat_|glpat-|nvapi-|sk-|xox[a-z]-|xapp-|npm_|pypi-|dckr_pat_|hvs\."
        r"|ya29\.|AIza|AGE-SECRET-KEY-1|tskey-|syt_|gsk_|xai-|SG\.|[sr]k_(?:live|test)_)[\w-]{8,}"
    ),
    re.compile(r"\beyJ[\w-]{8,}+(?P<end>\.[\w-]+\.[\w-]*)?"),
    re.compile(
        rf"(?P<name>authorization)(?P<gap>{_Q}\s*[:=]\s*{_Q}"
        r"(?P<scheme>(?:ApiKey|Basic|Bearer|Digest|Negotiate|Token)[ \t]+)?+)"
        rf"(?!<removed>){_WORD}(?(scheme)|(?:[ \t]+{_WORD})?)(?:,[ \t]*[\w-]+{_PARAMETER}+)*",
        re.I,
    ),
    re.compile(r"(?<=Bearer )[^\s\"',]+|(?<=Basic )[A-Za-z0-9+/=]{8,}", re.I),
    re.compile(r"(?<=://)(?:[^/\s:@]*:[^/\s@]+|:[^\s@]{1,200}|[^/\s:@]{20,})(?=@)"),
    re.compile(rf"(?P<name>{_HOOKS})(?P<gap>/)[^\s\"'<>,)}}\]]+", re.I),
    re.compile(r"(?<=/bot)\d{6,}:[\w-]{20,}"),
    # The signature of a signed URL is all that its user needs.
    re.compile(
        r"(?P<name>\bX-(?:Amz|Goog)-Signature|(?:[?&]|u0026)(?:signature|sig))"
        rf"(?P<gap>{_Q}\s*(?:[:=]|%3D)\s*{_Q})[^\s\"'<>&\\,]+",
        re.I,
    ),
    re.compile(
        rf"(?P<name>(?<![\w-])--[\w-]*(?:{_NAMES}|key))(?P<gap>[\"']?\s*[,=\s]\s*(?:- +)?[\"']?)(?!-)[^\s\"',]+", re.I
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
    re.compile(rf"(?P<name><[\w:.-]*(?:{_NAMES})>)(?P<gap>)[^<\n]+", re.I),
    # In a sentence or a command. A word without a digit is rather a part of the sentence.
    re.compile(
        r"(?P<name>\bwpa_passphrase\s+\S+|\b(?:(?:password|passphrase|psk)(?:\s+is)?|(?:using|with) token"
        r"|API key(?: provided:)?))(?P<gap>\s+[\"']{0,2})(?=[^\s\"',]*\d)[^\s\"',]{4,}",
        re.I,
    ),
    # The environment of a container in a manifest.
    re.compile(
        rf"(?P<name>{_Q}name{_Q}\s*[:=]\s*{_Q}(?:{_NAME}){_Q}\s*,\s*{_Q}value{_Q})"
        rf"(?P<gap>\s*[:=]\s*)(?!<removed>)(?:{_QUOTED}|[^\s,}}\]]+)",
        re.I,
    ),
)
_ENTRY = re.compile(rf"\s*(?:- )?{_Q}name{_Q}\s*:\s*{_Q}(?:{_NAME}){_Q},?\s*$", re.I)
_VALUE = re.compile(r"(?P<head>(?P<indent>\s*)[\"']?value[\"']?\s*:)(?P<value>\s.*|)$", re.I)
# All values of a Secret of Kubernetes, in one line or in several.
_SECRET = re.compile(rf"\bkind{_Q}\s*:\s*{_Q}Secret\b")
_DATA = re.compile(rf"(?P<name>\b(?:stringData|data){_Q}\s*:)\s*\{{[^{{}}]+\}}")
_DATA_BELOW = re.compile(
    r"^(?P<name>(?P<indent> *)(?P<item>- )?(?:stringData|data):)[ \t]*(?:\n(?:(?P=indent)(?(item)  ) +.*|[ \t]*$))++",
    re.M,
)
_LINE = re.compile(rf"(?P<head>(?P<indent>\s*(?:- )?)[\"']?(?:{_NAME})[\"']?\s*:)(?P<value>\s.*|)$", re.I)
# What is within a mapping is found by its own names, unless it is short and has no quotes.
_MAPPING = r"(?<!=)\{\s*(?:\}|$|[\"'\\]|[\w.-]+\s*:\s)"
_LIST = r"(?<!=)(?:\{(?![^{}\n]*<removed>)[^{}\"'\n]+\}|\[[^\[\]\n]*\]?)"


def _inline(words: str) -> re.Pattern[str]:
    """Return what finds names with their values within a line; a value after ``words`` and a colon may have spaces."""
    return re.compile(
        rf"(?<![\w.-])(?P<head>(?:#(?:\w+ )?)?{_Q}(?:(?P<wordy>{words})|{_NAME}){_Q}\]?\s*[:=]\s*+)"
        rf"(?P<value>{_QUOTED}|{_LIST}|(?!{_MAPPING})(?:(?(wordy)(?<!=)(?<!= )[^,}}\]]+|(?!))|[^\s,}}\]]+))",
        re.I,
    )


_INLINE = _inline(rf"[\w.-]*(?:{_WORDY})")
# YAML in one line: every unquoted value goes up to the next comma or bracket.
_FLOW = _inline(_NAME)
# WireGuard of netplan: "keys: {public: …, shared: …}", in one line or in several.
_SHARED_BELOW = re.compile(r"(?P<indent>\s*(?:- )?)[\"']?keys[\"']?\s*:\s*\{?\s*$")
_SHARED = re.compile(r"(?P<head>(?:^|[\s{,\-])[\"']?shared[\"']?\s*:\s+)(?P<value>[^\s,}]+)")
_SHARED_FLOW = re.compile(r"(?<=keys)[\"']?\s*:\s*\{[^{}\n]*")

# Short numbers and these words are settings, counts and results, also "pass: 3 of 4 checks".
_RESULT = r"\d{1,3}(?:\.\d{1,4})?(?: of \d{1,3}(?: [a-z]+)?)?|true|false|yes|no|ok|null|none|~|<removed>"
_PLAIN = re.compile(rf"{_Q}(?:{_RESULT})?{_Q},?", re.I)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# "#new-token: 1234" of SGLang's log is a count.
_COUNT = re.compile(r"#|(?<![a-z])(?:max|min|num|per|total)[-_]token", re.I)
# The working directory in the environment and in sudo's log.
_DIRECTORY = re.compile(r"(?:OLD)?PWD=/")


def _shaped(match: re.Match[str]) -> str:
    parts = match.groupdict()
    if "end" in parts and not parts["end"]:
        return match[0]
    return f"{parts['name']}{parts['gap']}{REMOVED}" if "name" in parts else REMOVED


def _harmless(head: str, value: str) -> bool:
    if re.search("passw|psk|passphrase", head, re.I):
        return False
    if _COUNT.search(head) and _NUMBER.fullmatch(value):
        return True
    return bool(_PLAIN.fullmatch(value) or _DIRECTORY.match(head + value))


def _named(match: re.Match[str]) -> str:
    if _harmless(match["head"], match["value"].strip()):
        return match[0]
    return f"{match['head']}{'' if match['head'][-1] in ' =' else ' '}{REMOVED}"


def _within(line: str) -> str:
    """Return a line without the values of the secret names in it."""
    line = _SHARED_FLOW.sub(lambda match: _SHARED.sub(_named, match[0]), line)
    return (_FLOW if "{" in line else _INLINE).sub(_named, line)


def _lines(text: str) -> Iterable[str]:
    """Yield the lines without the values of secret names, and without the lines that continue such a value."""
    below: int | None = None
    keys: int | None = None
    opened = entry = False
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if below is not None and (
            indent > below or not line.strip() or (opened and indent == below and line.lstrip().startswith("- "))
        ):
            continue
        if keys is not None and indent <= keys and line.strip():
            keys = None
        match = _LINE.match(line) or (_VALUE.match(line) if entry else None)
        entry = bool(_ENTRY.match(line))
        if match and not match["value"].lstrip().startswith("{"):
            opened = match["value"].strip().rstrip("+-") in ("", "|", ">", "[")
            shown = f"{match['head']} {REMOVED}" if opened else _named(match)
            below = len(match["indent"]) if REMOVED in shown else None
            yield shown
            continue
        below = None
        yield _within(line if keys is None else _SHARED.sub(_named, line))
        if scope := _SHARED_BELOW.match(line):
            keys = len(scope["indent"])


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return the text without private keys, tokens, passwords, and the ``known`` secrets, plain or encoded."""
    for secret in sorted({s.strip() for s in known if len(s.strip()) >= SHORTEST}, key=len, reverse=True):
        encoded = (base64.b64encode(secret.encode()).decode(), quote(secret, safe=""), json.dumps(secret)[1:-1])
        for form in dict.fromkeys((secret, *encoded)):
            text = text.replace(form, REMOVED)
    if _SECRET.search(text):
        for data in (_DATA, _DATA_BELOW):
            text = data.sub(rf"\g<name> {REMOVED}", text)
    for shape in _SHAPES:
        text = shape.sub(_shaped, text)
    return "\n".join(_lines(text))
