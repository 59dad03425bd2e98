# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that each error with which a host refuses Ansible has its own cause and remedy."""

import stored
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
ERRORS = [
    f"{VIA_SSH}{UNKNOWN_KEY}",
    f"{VIA_SSH}Host key verification failed.",
    f'{UNSENT}"192.0.2.1". Make sure this host can be reached over ssh: {UNKNOWN_KEY}',
    f"Task failed: {VIA_SSH}{CHANGED}",
    f"{VIA_SSH}ssh: Could not resolve hostname sprak1: Name or service not known",
    f"{VIA_SSH}ssh: connect to host 192.0.2.1 port 22: No route to host",
    f"{VIA_SSH}nvidia@192.0.2.1: Permission denied (publickey,password).",
    "Failed to authenticate: Invalid/incorrect password: Permission denied",
    "Missing sudo password",
    "Incorrect sudo password",
    "MODULE FAILURE\nnvidia is not in the sudoers file.",
    "The module interpreter '/usr/bin/python3' was not found.",
    "OSError: [Errno 28] No space left on device: '/tmp/x'",
    "mkdir: cannot create directory '/home/nvidia/.ansible': Read-only file system",
    "Failed to create temporary directory. In some cases, you may have been able to authenticate",
    "MODULE FAILURE\nTimeoutError: timed out",
    f"{VIA_SSH}kex_exchange_identification: Connection closed by remote host",
    "something new\nmore",
    "",
]


def test_an_error_has_its_cause_and_remedy_and_every_rule_about_an_unread_host_its_case() -> None:
    told, rules = {}, set()
    for error in ERRORS:
        unread = {"error": error, "address": "192.0.2.1", "user": "nvidia"}
        (found,) = check_host(Host("spark1", None, unread=unread))
        told[repr(error)], rules = [f"{found.rule} = {found.value!r}: {found.remedy}"], rules | {found.rule}
    stored.compare("preflight_contact", told)
    names = {name for name in RULES.all if name.startswith(("preflight.login.", "preflight.host."))}
    assert rules == names - {"preflight.host.twins"}


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
