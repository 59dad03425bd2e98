# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that only a task that asks for it goes on with a host that could not be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gb10.cluster.plugins.action import preflight_info


def run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    def unreachable(_self: object, **_options: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure("Host key verification failed.")

    action = preflight_info.ActionModule.__new__(preflight_info.ActionModule)
    action._task = SimpleNamespace(args=options)
    action._play_context = SimpleNamespace(remote_user="nvidia")
    monkeypatch.setattr(preflight_info.ActionBase, "run", lambda *_words: {})
    monkeypatch.setattr(preflight_info.ActionModule, "_execute_module", unreachable)
    return dict(action.run(None, {"ansible_host": "192.0.2.1"}))


def test_a_host_that_can_not_be_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleConnectionFailure):
        run(monkeypatch)


def test_preflight_goes_on_with_the_error_as_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = run(monkeypatch, keep_unread=True)["ansible_facts"]
    assert facts["gb10_preflight"] is None
    unread = facts["gb10_preflight_unread"]
    assert unread.pop("error").endswith("Host key verification failed.")
    assert unread == {"address": "192.0.2.1", "user": "nvidia"}
