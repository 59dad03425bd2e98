# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the URL of the API that role k3s writes into kubeconfigs and into the configuration of joining nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

VARIABLES = Path(__file__).resolve().parents[3] / "roles" / "k3s" / "vars" / "main.yml"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("192.168.10.11", "https://192.168.10.11:6443"),
        ("api.example.org", "https://api.example.org:6443"),
        ("fd00:10::11", "https://[fd00:10::11]:6443"),
    ],
)
def test_an_ipv6_address_has_brackets(host: str, url: str) -> None:
    loader = DataLoader()
    template = loader.load_from_file(str(VARIABLES), trusted_as_template=True)["__k3s_api_url"]
    known = {"k3s_api_host": host, "k3s_api_port": 6443}
    assert Templar(loader=loader, variables=known).template(template) == url
