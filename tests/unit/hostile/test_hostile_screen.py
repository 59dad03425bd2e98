# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a text of a host, a pod or a model neither rewrites the owner's screen nor leaves a bundle's directory."""

from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import serving_chat, show, support_bundle
from ansible_collections.gb10.cluster.plugins.callback import contact
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller import action
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import Waiting, hold

# Clears the screen, names the window, returns to the start of the line, hides, reorders; and what may stay.
EVIL = "\x1b[2J\x1b]0;a\x07b\rok\x9b8m\u202ec\u2066\x7f\x00\n\té \U0001f600\u200d"
SEEN = "?[2J?]0;a?b?ok?8m?c???\n\té \U0001f600\u200d"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(Waiting, "loaded", False)
    monkeypatch.setattr(Display, "display", lambda _self, text, **_options: said.append(text))
    return said


def task(**fields: Any) -> Any:
    return SimpleNamespace(_task=SimpleNamespace(run_once=True, check_mode=True), _templar=None, **fields)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_text_that_is_shown(screen: list[str], at_end: bool) -> None:
    options = {"text": EVIL, "rows": [], "failed_as": "", "findings": None, "at_end": at_end, "wrap": True}
    show.ActionModule.act(task(), options, {"ansible_play_hosts": ["a"], "inventory_hostname": "a"})
    assert screen == [SEEN]


def test_an_answer_of_a_model_and_a_text_for_the_end_of_the_run(screen: list[str]) -> None:
    serving_chat.streamed([EVIL.encode()], serving_chat._show)
    last = contact.CallbackModule()
    # A module's result is what its host says, so a host can forge this one.
    last.v2_runner_on_ok(SimpleNamespace(result={"invocation": {"last_word": [f"error: {EVIL}"]}}))
    last.v2_playbook_on_stats(None)
    assert [text.replace("\x1b[0;31merror\x1b[0m", "error") for text in screen] == [SEEN, f"error: {SEEN}"]


def test_a_message_and_the_warnings_of_an_action(monkeypatch: pytest.MonkeyPatch) -> None:
    class Action(action.ControllerAction):
        def act(self, options: Any, task_vars: Any) -> dict[str, Any]:
            return {"msg": EVIL, "warnings": [EVIL], "data": EVIL, **hold(EVIL)}

    monkeypatch.setattr(action, "documented_spec", lambda _name: {})
    monkeypatch.setattr(ActionBase, "run", lambda *_arguments: {})
    monkeypatch.setattr(ActionBase, "validate_argument_spec", lambda *_arguments: ({}, {}))
    made = Action.run(object.__new__(Action))
    assert (made["msg"], made["warnings"], made["data"]) == (SEEN, [SEEN], EVIL)


def test_nothing_of_the_collection_displays_a_text_in_another_way() -> None:
    calls = [path.name for path in (ROOT / "plugins").rglob("*.py") if ".display(" in path.read_text(encoding="utf-8")]
    assert sorted(calls) == ["action.py", "progress.py"]


NAMES = {
    **dict.fromkeys(("../../../.bashrc", "..", ".", "", "a/../../b", "/etc/x", "a  ..", ".ssh/x", "a\x00b", "é" * 999)),
    "log n pod-0.c c_1": "hosts/h/log/n/pod-0.c/c_1.txt",
}


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_a_text_of_a_bundle_stays_below_its_host(number: int, tmp_path: Path) -> None:
    name, place = list(NAMES.items())[number]
    options = {"cluster": {"texts": {}}, "register": "r", "plans": {}, "results": tmp_path}
    variables = {"ansible_play_hosts_all": ["h"], "hostvars": {"h": {"r": {"texts": {name: "x"}}}}}
    texts, _missing = support_bundle._collected(options, variables)
    (path,) = set(texts) - {"controller/versions.txt"}
    parts = PurePosixPath(path).parts
    assert parts[:2] == ("hosts", "h")
    assert len(parts) >= 3
    assert not any(part.startswith(".") or not part.isprintable() or len(part) > 120 for part in parts)
    assert place in (None, path)
