# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the main() of a module as Ansible does, and simulate users and file systems that refuse access."""

import errno
import json
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
