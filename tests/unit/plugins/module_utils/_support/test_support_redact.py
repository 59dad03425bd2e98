# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that secrets are removed in every notation in which logs and configuration have them, and other text is not."""

from __future__ import annotations

import base64

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._support.redact import redact

HIDDEN = "hunter2zwei"


@pytest.mark.parametrize(
    "text",
    [
        f'{{"password": "a {HIDDEN} c", "x": 1}}',
        f"password = 'my, {HIDDEN}' and more",
        f'wifis: {{w: {{access-points: {{Home: {{password: "{HIDDEN}"}}}}}}}}',
        f"  - sae-password: two words, {HIDDEN}",
        f"password: |\n\n    one\n    {HIDDEN}\nmtu: 9000",
        f"auth:\n  key-management: psk\n  password: {HIDDEN}\nmtu: 9000",
        f"peers:\n  - keys:\n      private: {HIDDEN}",
        f"AWS_SECRET_ACCESS_KEY={HIDDEN} X_TOKEN={HIDDEN}",
        f"--token={HIDDEN} --api-key {HIDDEN}",
        f'["--api-key", "{HIDDEN}", "--tp", "4"]',
        f"Authorization: Bearer {HIDDEN}",
        f"Cookie: {HIDDEN}",
        f"pull https://robot:{HIDDEN}@registry.example/v2",
        f"hf_{HIDDEN} ghp_{HIDDEN} K10{'0a' * 32}::server:{HIDDEN}",
        f"-----BEGIN EC PRIVATE KEY-----\n{HIDDEN}\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN} (cut off)",
        f"{HIDDEN}{'A' * 20}\nABCDEFGHABCDEFGH\n-----END PRIVATE KEY-----",
        f"the value is known: {HIDDEN} {base64.b64encode(HIDDEN.encode()).decode()}",
    ],
)
def test_secrets_are_removed(text: str) -> None:
    known = [HIDDEN, "no"] if "known" in text else []
    said = redact(text, known)
    assert HIDDEN not in said and base64.b64encode(HIDDEN.encode()).decode() not in said
    assert "<removed>" in said and "<removed>>" not in said
    assert "mtu: 9000" in said or "mtu" not in text
    assert redact(said, known) == said


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-token: 12, #cached-token: 0, token usage: 0.31, max_total_num_tokens=1234",
        "api_key=None, hf_token=None, disable_cuda_graph=False",
        "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
        "network: {ethernets: {enp1s0f0np0: {mtu: 9000, virtual-function-count: 2}}}",
        "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
    ],
)
def test_what_explains_a_fault_is_kept(text: str) -> None:
    assert redact(text) == text
