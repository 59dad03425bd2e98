# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import subprocess
from collections.abc import Sequence

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def test_the_drop_in_names_each_interface() -> None:
    assert system.unmanaged(["a", "b"]) == "[keyfile]\nunmanaged-devices+=interface-name:a;interface-name:b\n"


@pytest.mark.parametrize(("status", "reloads"), [(0, 1), (3, 0)])
def test_only_a_running_network_manager_is_reloaded(monkeypatch: pytest.MonkeyPatch, status: int, reloads: int) -> None:
    ran: list[str] = []

    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        ran.append(" ".join(argv))
        return subprocess.CompletedProcess(list(argv), status, "", "")

    monkeypatch.setattr(system, "run", run)
    system.reload_network_manager()
    assert ran.count("nmcli general reload conf") == reloads
