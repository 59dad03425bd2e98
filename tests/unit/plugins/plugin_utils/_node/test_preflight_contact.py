# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that each error with which a host refuses Ansible has its own cause and remedy."""

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, error_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import RULES, check_host

VIA_SSH = "Failed to connect to the host via ssh: "
UNSENT = "Data could not be sent to remote host "
UNKNOWN_KEY = (
    "No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.\nHost key verification failed."
)
CHANGED = """@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Host key for 192.0.2.1 has changed and you have requested strict checking.
Host key verification failed."""


CASES = [
    (
        f"{VIA_SSH}No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.\n"
        "Host key verification failed.",
        "login.key_unknown",
        "No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.",
        "ssh nvidia@192.0.2.1",
    ),
    (f"{VIA_SSH}Host key verification failed.", "login.key_unknown", "Host key verification failed.", "once"),
    (
        f'{UNSENT}"192.0.2.1". Make sure this host can be reached over ssh: {UNKNOWN_KEY}',
        "login.key_unknown",
        "No ED25519 host key is known for 192.0.2.1 and you have requested strict checking.",
        "once",
    ),
    (
        f"Task failed: {VIA_SSH}{CHANGED}",
        "login.key_changed",
        "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!",
        "ssh-keygen -R 192.0.2.1",
    ),
    (
        f"{VIA_SSH}ssh: Could not resolve hostname sprak1: Name or service not known",
        "login.name",
        "ssh: Could not resolve hostname sprak1: Name or service not known",
        "ansible_host",
    ),
    (
        f"{VIA_SSH}ssh: connect to host 192.0.2.1 port 22: No route to host",
        "login.no_answer",
        "ssh: connect to host 192.0.2.1 port 22: No route to host",
        "management address",
    ),
    (
        f"{VIA_SSH}nvidia@192.0.2.1: Permission denied (publickey,password).",
        "login.refused",
        "nvidia@192.0.2.1: Permission denied (publickey,password).",
        "ssh-copy-id nvidia@192.0.2.1",
    ),
    (
        "Failed to authenticate: Invalid/incorrect password: Permission denied",
        "login.password",
        "Failed to authenticate: Invalid/incorrect password: Permission denied",
        "ssh-copy-id nvidia@192.0.2.1",
    ),
    ("Missing sudo password", "login.sudo_password", "Missing sudo password", "-K"),
    ("Incorrect sudo password", "login.sudo_wrong", "Incorrect sudo password", "-K"),
    (
        "MODULE FAILURE\nnvidia is not in the sudoers file.",
        "login.no_sudo",
        "nvidia is not in the sudoers file.",
        "usermod -aG sudo nvidia",
    ),
    (
        "The module interpreter '/usr/bin/python3' was not found.",
        "host.no_python",
        "The module interpreter '/usr/bin/python3' was not found.",
        "apt-get install python3",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/tmp/x'",
        "host.full",
        "OSError: [Errno 28] No space left on device: '/tmp/x'",
        "df -h",
    ),
    (
        "mkdir: cannot create directory '/home/nvidia/.ansible': Read-only file system",
        "host.read_only",
        "mkdir: cannot create directory '/home/nvidia/.ansible': Read-only file system",
        "dmesg",
    ),
    (
        "Failed to create temporary directory. In some cases, you may have been able to authenticate",
        "host.no_directory",
        "Failed to create temporary directory. In some cases, you may have been able to authenticate",
        "/var/tmp/.ansible-nvidia",
    ),
    ("MODULE FAILURE\nTimeoutError: timed out", "host.unread", "MODULE FAILURE", "-vvv"),
    (
        f"{VIA_SSH}kex_exchange_identification: Connection closed by remote host",
        "login.no_answer",
        "kex_exchange_identification: Connection closed by remote host",
        "is on",
    ),
    ("something new\nmore", "host.unread", "something new", "-vvv"),
    ("", "host.unread", None, "-vvv"),
]


@pytest.mark.parametrize(("error", "rule", "value", "remedy"), CASES)
def test_an_error_has_its_cause_and_remedy(error: str, rule: str, value: str | None, remedy: str) -> None:
    unread = {"error": error, "address": "192.0.2.1", "user": "nvidia"}
    (found,) = check_host(Host("spark1", None, unread=unread))
    assert (found.rule, found.value, found.severity) == (f"preflight.{rule}", value, "error")
    assert remedy in found.remedy


def test_a_long_line_is_cut_and_an_unknown_user_has_a_placeholder() -> None:
    unread = {"error": f"{VIA_SSH}x: Permission denied (publickey)" + "y" * 300}
    (found,) = check_host(Host("spark1", None, unread=unread))
    assert len(str(found.value)) == 200
    assert "USER@" in found.remedy
    (found,) = check_host(Host("spark1", None, unread={}))
    assert (found.rule, found.value) == ("preflight.host.unread", None)


def test_all_parts_of_an_error_are_read() -> None:
    assert error_of({"msg": None, "module_stderr": "a", "module_stdout": "b\n"}) == "a\nb"
    assert error_of({"msg": "m"}) == "m"


def test_every_rule_about_a_host_that_was_not_read_has_a_case() -> None:
    names = {name.removeprefix("preflight.") for name in RULES.all}
    assert {rule for _error, rule, _value, _remedy in CASES} == {
        n for n in names if n.startswith(("login.", "host."))
    } - {"host.twins"}
