# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a support bundle on the controller."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.release import __version__ as ansible_version
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import REMOVED, SHOWN_ENVIRONMENT, redact
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.journal import collection_version
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import secret_values

VERDICTS = 10
PREFACE = """# Support bundle

Versions, plans, verdicts, logs and counters of all hosts and of the cluster. Known forms of private keys, tokens and
passwords are replaced by <removed>. Read the files before you send them: host names, addresses and model names remain,
and so does a secret that neither its name nor its form shows to be one.
"""


class ActionModule(ControllerAction):
    """Carry out ``gb10.cluster.support_bundle``."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Write the archive; failed only if it cannot be written."""
        texts, missing = _collected(options, task_vars)
        secrets, unknown = secret_values(task_vars["hostvars"])
        missing |= {f"variable {name}": f"{why}; only its shape protects its value" for name, why in unknown.items()}
        files = {name: redact(text, secrets) for name, text in texts.items()}
        files["INDEX.md"] = redact(_index(files, missing), secrets)
        path = Path(options["dest"]) / f"gb10-support-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
        if not self._task.check_mode:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(path, files)
        size = f"{path.stat().st_size / 1024:.0f} KiB" if path.exists() else "not written in check mode"
        done = f"{path} ({size}) has {len(files)} files"
        if missing:
            done += f"; {len(missing)} texts are missing or incomplete, and INDEX.md in the archive says why"
        return {"changed": not self._task.check_mode, "path": str(path), "missing": missing, "msg": f"{done}."}


def _collected(options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return all texts and all reasons by their place in the archive."""
    answers = {"cluster": options["cluster"]}
    for host in task_vars["ansible_play_hosts_all"]:
        answers[f"hosts/{host}"] = task_vars["hostvars"][host].get(options["register"]) or {}
    texts = {"controller/versions.txt": _versions()}
    missing: dict[str, str] = {}
    for place, answer in answers.items():
        if "texts" not in answer:
            missing[place] = str(answer.get("msg") or "it was not read")
        texts |= {f"{place}/{_path(name)}.txt": str(text) for name, text in answer.get("texts", {}).items()}
        missing |= {f"{place}: {name}": str(why) for name, why in answer.get("missing", {}).items()}
    for name, plan in options["plans"].items():
        if plan:
            texts[f"plans/{name}.json"] = json.dumps(_planned(plan), indent=1, default=str)
        else:
            missing[f"plans/{name}"] = "it could not be made; run playbook plan, which says why"
    results = Path(options["results"])
    verdicts = [*results.glob("transport-*/transport.json"), *results.glob("transport-*.txt")]
    for path in sorted(verdicts, key=lambda p: p.stat().st_mtime)[-VERDICTS:]:
        texts[f"verdicts/{path.relative_to(results)}"] = path.read_text(encoding="utf-8")
    if not verdicts:
        missing["verdicts"] = f"{results} has no transport-*/transport.json; playbook verify writes it"
    return texts, missing


def _path(name: str) -> str:
    """Return a path of plain names for a text: a host gives its name, and whoever helps unpacks the archive."""
    return "/".join(re.sub(r"[^\w.-]|^\.", "_", part)[:100] or "_" for part in name.split(" "))


def _planned(value: Any) -> Any:
    """Return a part of a plan with only those values of an environment that are also shown of the pods."""
    if isinstance(value, (list, tuple)):
        return [_planned(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: _planned(each) for key, each in value.items()}
    if isinstance(environment := found.get("env"), dict):
        shown = {k: v if str(k).startswith(SHOWN_ENVIRONMENT) else REMOVED for k, v in environment.items()}
        found["env"] = shown
    return found


def _versions() -> str:
    """Return what made the archive: the first question of a support request."""
    found = {"gb10.cluster": collection_version(), "ansible-core": ansible_version, "python": platform.python_version()}
    return "\n".join(f"{name}: {version}" for name, version in found.items())


def _index(files: Mapping[str, str], missing: Mapping[str, str]) -> str:
    lines = [PREFACE, "## Files", "", *(f"- {name}: {len(text)} characters" for name, text in sorted(files.items()))]
    return "\n".join([*lines, "", "## Missing", "", *(f"- {k}: {v}" for k, v in sorted(missing.items())), ""])


def _write(path: Path, files: Mapping[str, str]) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(opened, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
