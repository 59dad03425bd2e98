# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the code that units run at boot is complete and runs without Ansible."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system, unit
from module_runs import become_nobody

BOOT_MODULES = ["_fabric.virtual_functions", "_fabric.netplan_undo", "_fabric.qos", "_host.memory_guard"]


@pytest.mark.parametrize("module", BOOT_MODULES)
def test_installed_code_imports_without_ansible_and_without_the_collection(module: str, tmp_path: Path) -> None:
    for path, source in system.package_files(module, tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    program = f"import gb10.{module}, sys; print([m for m in sys.modules if m.startswith('ansible')])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_only_what_a_unit_imports_is_installed(tmp_path: Path) -> None:
    found = {str(path.relative_to(tmp_path)) for path in system.package_files("_fabric.qos", tmp_path)}
    assert found == {"gb10/_fabric/qos.py", "gb10/_host/system.py"}


def test_a_module_that_does_not_exist_is_named() -> None:
    with pytest.raises(system.HostError, match=r"_fabric\.nothing: its source is missing"):
        system.package_files("_fabric.nothing")


def test_a_unit_is_not_started_again_after_a_failure_by_default(tmp_path: Path) -> None:
    one = unit.HostUnit("gb10-one", "", "_fabric.qos", tmp_path / "config", "", 5)
    text, _mode = one.files("")[one.unit_path]
    assert "Restart" not in text and "StartLimit" not in text


@pytest.mark.parametrize(
    ("number", "root", "words"),
    [
        (errno.EACCES, False, "ran as user ansible, but needs root: set `become: true`"),
        (errno.EPERM, True, "Root was refused too: see `lsattr /etc/x`"),
        (errno.EROFS, True, "findmnt -T /etc/x"),
        (errno.ENOSPC, True, "df -h /etc/x"),
        (errno.EIO, True, "/etc/x: Input/output error."),
    ],
)
def test_a_refused_file_is_explained(monkeypatch: pytest.MonkeyPatch, number: int, root: bool, words: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if not root:
        become_nobody(monkeypatch)
    assert words in system.explain(OSError(number, os.strerror(number), "/etc/x"))


def test_a_command_that_needs_root_says_so_to_a_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["sh", "-c", "echo RTNETLINK answers: Operation not permitted >&2; exit 2"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(system.HostError, match=r"Operation not permitted$"):
        system.run(command)
    become_nobody(monkeypatch)
    with pytest.raises(system.HostError, match="ran as user ansible"):
        system.run(command)
    with pytest.raises(system.HostError, match=r"exit status 3: other$"):
        system.run(["sh", "-c", "echo other; exit 3"])


def test_directories_above_a_file_can_be_read_by_all_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        system.stage(tmp_path / "networkd.conf.d" / "more" / "60-gb10.conf", "text", 0o644)
    finally:
        os.umask(before)
    made = tmp_path / "networkd.conf.d"
    assert [oct(path.stat().st_mode & 0o777) for path in (made, made / "more")] == ["0o755", "0o755"]


def test_a_read_only_file_system_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "netplan" / "60-gb10-fabric.yaml"
    system.require_writable([wanted])
    real = os.statvfs(tmp_path)
    asked: list[Path] = []

    def read_only(path: Path) -> os.statvfs_result:
        asked.append(path)
        return os.statvfs_result([*real[:8], os.ST_RDONLY, real.f_namemax])

    monkeypatch.setattr(os, "statvfs", read_only)
    with pytest.raises(OSError, match=r"60-gb10-fabric\.yaml") as caught:
        system.require_writable([wanted])
    assert asked == [tmp_path]
    assert "Its file system is read-only" in system.explain(caught.value)


def test_run_returns_although_a_process_cannot_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ip`` waits in the kernel for a hung driver, where no signal reaches it."""
    kill = subprocess.Popen.kill
    started: list[subprocess.Popen[str]] = []

    def kept_alive(process: subprocess.Popen[str]) -> None:
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", kept_alive)
    monkeypatch.setattr(system, "DEATH_S", 0)
    begun = time.monotonic()
    with pytest.raises(system.NoAnswer, match="no answer within 0 s"):
        system.run(["sleep", "60"], timeout=0.1)
    assert time.monotonic() - begun < 30
    kill(started[0])
    started[0].wait()


def test_two_runs_that_write_one_file_publish_what_they_wrote(tmp_path: Path) -> None:
    """The first run published the content of the second, which had replaced the file under the common name."""
    first = system.stage(tmp_path / "x", "first", 0o600)
    second = system.stage(tmp_path / "x", "second", 0o644)
    first.replace(tmp_path / "x")
    assert ((tmp_path / "x").read_text(), (tmp_path / "x").stat().st_mode & 0o777) == ("first", 0o600)
    second.replace(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system.os, "fsync", full)
    with pytest.raises(system.HostError, match=r"Cannot write .*Free some space"):
        system.stage(tmp_path / "x", "text", 0o600)
    assert not list(tmp_path.iterdir())


def test_the_links_of_a_namespace_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # iproute2 prints an empty object for a link that it filters.
    monkeypatch.setattr(system, "run_json", lambda argv: [{}, {"ifname": "eth0", "asked": argv}])
    asked = ["ip", "-j", "-d", "address", "show"]
    assert system.links() == {"eth0": {"ifname": "eth0", "asked": asked}}
    assert system.links(Path("/n"))["eth0"]["asked"] == ["nsenter", "--net=/n", *asked]


def test_output_that_is_no_json_is_named() -> None:
    with pytest.raises(system.HostError, match="echo oops: printed no JSON, but 'oops"):
        system.run_json(["echo", "oops"])


REFUSED = (
    "starting kubernetes: preparing server: bootstrap data already found and encrypted with different token; "
    'tls/client-ca.crt, cred/passwd newer than datastore and could cause a cluster outage ("a")'
)
OF_K3S = (
    'time="2026-11-28T10:00:00Z" level=info msg="Starting k3s v1.36.4+k3s1"\n'
    f"""time="2026-11-28T10:00:01Z" level=fatal msg="{REFUSED.replace('"', chr(92) + '"')}"\n"""
    "the last line\n"
)


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        (OF_K3S, REFUSED),
        ("FATA[0003] the flag is unknown\nexit\n", "the flag is unknown"),
        ("FATA k3s stand-in: the token is another\n", "k3s stand-in: the token is another"),
        ('level=fatal msg="first"\nlevel=fatal msg="second"\n', "second"),
        ("a\nmodprobe: not found\n\n", "modprobe: not found"),
        ("", "Job for gb10-transit.service failed."),
        ("FATA a\x1b[2Jb" + "c" * 2000, "a?[2Jb" + "c" * 794),
    ],
)
@pytest.mark.parametrize("unit", ["gb10-transit", "gb10-transit.service"])
def test_a_unit_that_does_not_start_says_why(
    journal: str, told: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal").write_text(journal)
    programs = {
        "systemctl": "echo Job for gb10-transit.service failed. >&2; exit 1",
        "journalctl": f"case $1 in _SYSTEMD_UNIT=gb10-transit.service) cat {tmp_path}/journal;; esac",
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(system.HostError) as caught:
        system.run(["systemctl", "restart", unit])
    assert str(caught.value) == f"systemctl restart {unit}: exit status 1: {told}"
    with pytest.raises(system.HostError, match="Job for"):
        system.run(["systemctl", "stop", unit])
