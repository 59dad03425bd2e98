# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the documented commands that need hosts, from untouched hosts to their reset, in the order of ``STAGES``."""

import os
import re
import subprocess
from collections.abc import Callable

import pytest
from documented import commands
from labcommand import CHECKOUT, LabCommand, recap
from sitecommand import CACHE, Site

COVERS = ("README.md", "inventory/4x-gb10-switch", "tests/unit/samples/documented.py", "playbooks/fabric_restore.yml")

# Every documented command matches one of these patterns. The tests run in this order.
STAGES = [
    "labctl (deps|up)",
    "site.yml --check",
    r"fabric\.yml$",
    "discover",
    "fabric_restore",
    r"site\.yml$",
    r"preflight",
    "serve.* --tags plan",
    "port-forward|^curl",
    "verify",
    "--tags health",
    "monitoring_state=absent",
    "support_bundle",
    r"models\.yml$",
    "models_state=fetched",
    "models_state=verified",
    "models_state=absent",
    r"reset\.yml",
    "labctl",
]
COMMANDS = [command for _page, command in commands("lab")]
GROUP = "gemma-4-31b-it"


def stage_of(command: str) -> int:
    return next(number for number, pattern in enumerate(STAGES) if re.search(pattern, command))


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., LabCommand]) -> Site:
    lab = make_lab("4x-gb10-switch", "lab")
    lab.up(nodes=4, kubernetes=True)
    return Site(lab)


def of_this_lab(lab: LabCommand, command: str, inventory: str = "-i inventory/4x-gb10-switch -i inventory/lab") -> str:
    """Replace examples by the lab's values. Without -K sudo has no password, as for the reader; labctl has its own."""
    password = "" if re.search(r" -\w*K|labctl", command) else " -e ansible_become_password="
    command = re.sub(r" -K\b", "", command).replace("$PWD", str(lab.state))
    command = command.replace("-i inventory/mine", inventory)
    return command + (f"{password} -e gb10_results_dir={lab.results}" if "ansible-playbook" in command else "")


def run(lab: LabCommand, script: str) -> str:
    kubectl = next(iter(sorted(CACHE.glob("kubernetes-*/bin"))))
    path = f"PATH={CHECKOUT}/.venv/bin:{kubectl}:{os.environ['PATH']}"
    words = ["env", path, f"KUBECONFIG={lab.state}/kubeconfig", "bash", "-euo", "pipefail", "-c", script]
    if script.startswith("sudo lab/labctl"):
        words[-1] = script.removeprefix("sudo ")
        done = subprocess.run(words, cwd=CHECKOUT, env=lab.environment, capture_output=True, text=True, check=False)
    else:
        done = lab.run(*words)
    assert done.returncode == 0, f"{script}\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_every_command_has_a_stage_and_every_stage_a_command() -> None:
    assert {stage_of(command) for command in COMMANDS} == set(range(len(STAGES)))


@pytest.mark.parametrize("stage", range(len(STAGES)), ids=STAGES)
def test_the_commands_of_a_stage_succeed(site: Site, stage: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = list(dict.fromkeys(of_this_lab(site.lab, each) for each in COMMANDS if stage_of(each) == stage))
    if STAGES[stage] == "models_state=absent":
        site.play("serve_stop", profile=GROUP)
    if STAGES[stage].startswith("port-forward"):
        (forward,), (ask,) = ([each for each in given if each.startswith(word)] for word in ("kubectl", "curl"))
        patient = ask.replace("curl", "curl --fail --silent --retry 20 --retry-connrefused --retry-delay 1")
        said = run(site.lab, f"{forward} > /dev/null & trap 'kill %1' EXIT; {patient}")
        assert '"content"' in said
        return
    for command in given:
        run(site.lab, command)
    if STAGES[stage] == r"site\.yml$":
        with capsys.disabled():
            counts = recap(site.lab.timed("site"), "changed")
        assert counts == dict.fromkeys(counts, 0)
