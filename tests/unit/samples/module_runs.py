# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the main() of a module as Ansible does, and simulate users and file systems that refuse access."""

import errno
import json
import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import stored
import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args


def run_module(
    module: Any, capsys: pytest.CaptureFixture[str], *, check: bool = False, **arguments: Any
) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the result of ``module.main()``."""
    with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit) as stop:
        module.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def become_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules behave as if user ``ansible`` ran them."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_name="ansible"))


def refuse_writes(monkeypatch: pytest.MonkeyPatch, number: int = errno.EACCES) -> None:
    """Refuse every new directory and every file that is opened for writing with ``os.open``."""

    def refuse(path: Path | str, *_arguments: Any, **_options: Any) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "open", refuse)


ROOT = Path(__file__).parents[3]


def lose_rights(host: Any) -> None:
    """Let an ordinary user run the module on a host of ``play``."""
    become_nobody(host.patch)
    refuse_writes(host.patch)


# Keys that Ansible documents, and those that an action gives to the next slice of a wait.
ALWAYS = ("msg", "changed", "diff", "ansible_facts", "done", "progress")
# What AnsibleModule tells of a file that is the result's path.
OF_PATH = ("owner", "group", "mode", "state", "size", "uid", "gid", "secontext")
_dumps = partial(json.dumps, ensure_ascii=False)
Step = Mapping[str, Any] | Callable[[Any], object]


def play(
    name: str,
    module: Any,
    cases: Mapping[str, Iterable[Step]],
    make: Callable[[Path, pytest.MonkeyPatch], Any],
    capsys: pytest.CaptureFixture[str],
    top: Path,
) -> None:
    """Run a module in the steps of each case, and compare what it returns and what the host then shows with the text.

    A step has options that are added to ``host.options``. A key that the host has as an attribute gets the value there
    instead. A step may be a function of the host, which may return such options. ``host.last`` is the last result.
    ``host.commands`` are cleared after each run.
    ``module`` may be a function of the options that returns it. After each run the text has what differs from the run
    before.
    """
    told: dict[str, list[str]] = {}
    keys: list[set[str]] = []
    known: dict[str, str] = {}
    for number, (title, steps) in enumerate(cases.items()):
        lines, seen = told.setdefault(title, []), dict[str, Any]()
        (place := top / str(number)).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            warned = list[str]()
            patch.setattr(AnsibleModule, "warn", lambda _module, text, warned=warned: warned.append(text))
            host = make(place, patch)
            hidden = re.compile(getattr(host, "hides", "(?!)"))

            def plain(text: str, place: Path = place, hidden: re.Pattern[str] = hidden) -> str:
                return hidden.sub("…", text.replace(str(place), "/top").replace(str(ROOT), "/repo"))

            for each in steps:
                step = each(host) if callable(each) else each
                if not isinstance(step, Mapping):
                    continue
                own = {key: value for key, value in step.items() if key in vars(host)}
                for key, value in own.items():
                    setattr(host, key, value if isinstance(value, Exception) else deepcopy(value))
                options = {**host.options, **{key: value for key, value in step.items() if key not in own}}
                given = ", ".join(_short(plain(f"{key}={value}")) for key, value in step.items() if key != "progress")
                asked = module(options) if isinstance(module, FunctionType) else module
                status, result = run_module(asked, capsys, **options)
                left = ("invocation", "warnings", "deprecations", "exception", *(OF_PATH if "path" in result else ()))
                result = {key: value for key, value in result.items() if key not in left}
                host.last = result
                keys.append({*result} - {"failed"})
                state = " and ".join(["FAILED"] * bool(status) + ["changed"] * bool(result.get("changed"))) or "ok"
                first, *others = plain(str(result.get("msg", ""))).splitlines() or [""]
                lines += [f"{given or 'again'}: {state}: {first}", *(f"  {line}" for line in others)]
                shown = {**result, "warned": [*warned], **_shows(host)}
                shown = {
                    key: _same(value, plain) for key, value in shown.items() if key not in ("msg", "failed", "changed")
                }
                warned.clear()
                for key, value in shown.items():
                    if value != seen.get(key, value and None):
                        part = _part(key, _news(value, seen.get(key)), plain)
                        before = known.get(text := "\n".join(part))
                        known.setdefault(text, title)
                        lines += [f"  {key}: as in '{before}'"] if before and len(text) > 120 else part
                seen |= shown
    documented = {*yaml.safe_load(getattr(module, "RETURN", "{}")), *ALWAYS}
    assert set.union(*keys) <= documented or isinstance(module, FunctionType), set.union(*keys) - documented
    told["keys"] = [", ".join(sorted(set.intersection(*keys))), ", ".join(sorted(set.union(*keys)))]
    stored.compare(f"module_{name}", told)


def steps_of(*, clock: bool = False, **plays: tuple[Any, Any, Mapping[str, Iterable[Step]]]) -> Any:
    """Return a test that plays the cases of modules on hosts that it makes, perhaps with a simulated clock."""

    @pytest.mark.parametrize("name", plays)
    def test(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        module, make, cases = plays[name]
        play(name, module, cases, make, capsys, tmp_path)

    return pytest.mark.usefixtures("simulated_clock")(test) if clock else test


def _shows(host: Any) -> dict[str, Any]:
    """Return what a host shows after a run, and the commands of this run."""
    ran = getattr(host, "commands", None)
    commands = {} if ran is None else {"commands": [*ran]}
    del (ran or [])[:]
    return commands | getattr(host, "shows", dict)()


def _same(value: Any, plain: Callable[[str], str]) -> Any:
    """Return a value without what is another one in each run, so that it does not count as a difference."""
    try:
        return json.loads(plain(_dumps(value)))
    except ValueError:
        return value


def _news(value: Any, before: Any) -> Any:
    """Return of a mapping only what differs from the one before."""
    if not (isinstance(value, Mapping) and isinstance(before, Mapping) and {*value} >= {*before}):
        return value
    return {key: _news(one, before.get(key)) for key, one in value.items() if key not in before or before[key] != one}


def _folded(text: str) -> list[str]:
    """Return the lines of a text; JSON is one line, or one for each key of a long mapping."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.splitlines()
    whole = _dumps(value)
    if len(whole) < 100 or not isinstance(value, dict):
        return [whole]
    return [f"{key}: {_dumps(one)}" for key, one in value.items()]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 80 else f"{text[:60]}…"


def _part(key: str, value: Any, plain: Callable[[str], str]) -> list[str]:
    """Return a value in one line, or a long one in one line for each item or line."""
    if isinstance(value, Mapping) and any("\n" in str(one) for one in value.values()):
        value = [line for name, text in value.items() for line in (f"{name}:", *_folded(str(text)))]
    if isinstance(value, Mapping) and len(str(value)) > 200:
        value = [f"{name}: {_dumps(one)}" for name, one in value.items()]
    items = value if isinstance(value, list) else [value]
    words = [plain(one if isinstance(one, str) and "\n" not in one else _dumps(one)) for one in items]
    text = ", ".join(words)
    return (
        [f"  {key}: {text}"] if len(items) < 2 or len(text) < 100 else [f"  {key}:", *(f"    {word}" for word in words)]
    )
