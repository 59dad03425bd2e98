# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which hosts verify the air-gap directory: the first server, and each host that needs other files."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

VARIABLES = Path(__file__).resolve().parents[3] / "roles" / "k3s" / "vars" / "main.yml"
READ = {"binary": "/srv/k3s", "images": ["/srv/a.tar.zst"], "sums": {"k3s": "1", "a.tar.zst": "2"}}
OWN = {"binary": "/srv/k3s-arm64", "images": [], "sums": {"k3s-arm64": "3"}}


def host(read: Any = None, directory: str = "/srv", architecture: str = "x86_64") -> dict[str, Any]:
    known = {"k3s_airgap_dir": directory, "ansible_facts": {"architecture": architecture}}
    return known if read is None else {**known, "k3s_airgap_read": read}


def values(server: dict[str, Any], name: str = "agent", **own: Any) -> list[Any]:
    """Return whether a host knows the directory already, and the files that it must have."""
    loader = DataLoader()
    known = loader.load_from_file(str(VARIABLES), trusted_as_template=True) | {
        "k3s_servers": ["server"], "k3s_bin_dir": "/bin", "k3s_data_dir": "/data", "inventory_hostname": name,
        "hostvars": {"server": server}, **own,
    }  # fmt: skip
    templar = Templar(loader=loader, variables=known)
    return [templar.template(known[f"__k3s_airgap_{part}"]) for part in ("is_known", "sums")]


def test_an_agent_uses_what_the_first_server_has_found() -> None:
    known, sums = values(host(READ), **host({"skipped": True}))
    assert known is True
    assert sums == {"/bin/k3s": "1", "/data/agent/images/a.tar.zst": "2"}


@pytest.mark.parametrize(
    "server",
    [
        host(),
        host({"skipped": True}),
        host({**READ, "failed": True}),
        host(READ, directory="/opt"),
        host(READ, architecture="aarch64"),
        {"k3s_airgap_read": READ, "ansible_facts": {"architecture": "x86_64"}},
    ],
)
def test_an_agent_verifies_what_the_first_server_has_not(server: dict[str, Any]) -> None:
    assert values(server, **host(OWN)) == [False, {"/bin/k3s": "3"}]


def test_the_first_server_verifies_again_when_the_role_runs_again() -> None:
    known, _sums = values(host(READ), "server", **host(READ))
    assert known is False
