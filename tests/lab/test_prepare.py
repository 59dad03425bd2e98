# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run every block of docs/prepare.md on hosts as delivered, in the page's order."""

import os
import re
import time
from collections.abc import Callable

import pytest
from labcommand import CHECKOUT, LabCommand

COVERS = ("docs/prepare.md", "plugins/action/preflight_info.py")

NODES = {"spark1": "10.99.0.11", "spark2": "10.99.0.12"}
# Read NIC firmware and GPU, or measure RDMA.
NEED_HARDWARE = 5
BLOCK = re.compile(r"^```shell\n# (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
BLOCKS = BLOCK.findall((CHECKOUT / "docs" / "prepare.md").read_text(encoding="utf-8"))
RESTART = "sudo reboot\n"
BASHRC = "/home/nvidia/.bashrc"


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., LabCommand]) -> LabCommand:
    made = make_lab("2x-gb10-direct", "lab")
    made.up(nodes=2)
    made("fault", "spark1", "broken-netplan")
    # The first Ansible user of a machine has a key in the default place.
    home = made.state / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519.pub").write_text((made.state / "ssh" / "id_ed25519.pub").read_text())
    (home / ".ssh" / "id_ed25519").symlink_to(made.state / "ssh" / "id_ed25519")
    programs = made.state / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {made.state}/ssh/config "$@"\n')
    (programs / "ssh").chmod(0o755)
    return made


def of_this_lab(script: str, address: str) -> str:
    """Replace the page's examples by the values of a lab host."""
    for example, value in {
        "192.168.10.11": address,
        "192.168.10.1 ": "10.99.0.1 ",
        "192.168.10.1\n": "10.99.0.1\n",
        "/sys/": "/run/gb10-lab/sys/",
        "-i inventory/mine -K": "-i inventory/2x-gb10-direct -i inventory/lab",
    }.items():
        script = script.replace(example, value)
    assert "192.168.10" not in script
    return script


def on_host(lab: LabCommand, host: str, script: str) -> str:
    """Run a script as the user of a host, whose sudo has just been given its password."""
    password = (lab.state / "become-password").read_text()
    whole = f"sudo -S -v <<<'{password}' 2>/dev/null\n{script}"
    reach = ["ssh", "-F", lab.state / "ssh" / "config", host, "bash -euo pipefail"]
    done = lab.run(*reach, stdin=whole)
    # The connection may end before the restart's own status arrives.
    assert done.returncode in ((0, 255) if script == RESTART else (0,)), f"{host}: {script}\n{done.stdout}{done.stderr}"
    return done.stdout


def on_controller(lab: LabCommand, script: str) -> str:
    path = f"{lab.state}/bin:{CHECKOUT}/.venv/bin:{os.environ['PATH']}"
    done = lab.run("env", f"HOME={lab.state}/home", f"PATH={path}", "bash", "-euo", "pipefail", "-c", script)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def boot_id(lab: LabCommand, host: str) -> str:
    return lab("exec", host, "--", "cat", "/proc/sys/kernel/random/boot_id", check=False)


def wait_for_reboot(lab: LabCommand, host: str, before: str, patience: float = 60) -> None:
    """Wait until a host that restarts has booted and started all its units. Pods make it slow to go down."""
    started = time.monotonic()
    # Not labctl exec: what Podman starts in a container that is going down may never end.
    reach = ["timeout", "20", "ssh", "-F", lab.state / "ssh" / "config", host]
    while (taken := time.monotonic() - started) < patience:
        said = str(lab.run(*reach, "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running").stdout)
        boot, _, ready = said.strip().partition("\n")
        if boot not in ("", before.strip()) and ready == "running":
            print(f"{taken:.0f} s until {host} was back")
            return
        time.sleep(0.5)
    units = lab.run(*reach, "systemctl list-units --state=failed --plain --no-legend; systemctl list-jobs").stdout
    raise AssertionError(
        f"{host} is {ready or 'silent'} after {taken:.0f} s, booted anew: {boot != before.strip()}\n{units}"
    )


def test_only_blocks_that_need_hardware_are_left_out() -> None:
    places = [place for place, _script in BLOCKS]
    assert set(places) <= {
        f"On {where}{mark}"
        for where in ("every Spark", "your machine", "your machine, for every Spark")
        for mark in ("", ", real hardware")
    }
    assert sum(place.endswith("real hardware") for place in places) == NEED_HARDWARE


def test_every_block_of_the_page_runs_in_its_order(lab: LabCommand) -> None:
    said = {}
    for place, script in BLOCKS:
        if place.endswith("real hardware"):
            continue
        if place == "On your machine":
            said[script] = on_controller(lab, of_this_lab(script, ""))
            continue
        for host, address in NODES.items():
            if place.startswith("On your machine"):
                assert " sudo" in on_controller(lab, of_this_lab(script, address))
                continue
            before = boot_id(lab, host)
            said[host, script] = on_host(lab, host, of_this_lab(script, address))
            if script == RESTART:
                wait_for_reboot(lab, host, before)
    for host, address in NODES.items():
        assert f"inet {address}/24" in lab.shell(host, "ip address show enP7s7")
        assert "default via 10.99.0.1" in lab.shell(host, "ip route")
        assert lab.shell(host, "nmcli -g ipv4.addresses connection show 'Wired connection 1'")
        assert "40-cx7" not in lab.shell(host, "ls /etc/netplan")
        assert "192.168.100" not in lab.shell(host, "ip address")
    (report,) = [text for script, text in said.items() if "preflight.yml" in script]
    assert "0 errors" in report
    assert not re.search(r"preflight\.(netplan|memory|user)\.", report)


def test_a_login_that_prints_is_named_with_the_line_that_ends_it(lab: LabCommand) -> None:
    (script,) = (script for _place, script in BLOCKS if "preflight.yml" in script)
    lab.shell("spark2", f"sed -i '1i echo Welcome to the lab' {BASHRC}")
    report = " ".join(on_controller(lab, of_this_lab(script, "")).split())
    assert "warning: spark2: login = 'Welcome to the lab'" in report
    (line,) = re.findall(r"On the host, put (.+?) above the line that prints it, in ~/\.bashrc of nvidia", report)
    lab.shell("spark2", f"sed -i '1i {line}' {BASHRC}")
    assert "preflight.user.prints" not in on_controller(lab, of_this_lab(script, ""))
