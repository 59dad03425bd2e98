# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start SGLang's Model Gateway (sglang_router 0.3.2): start_gateway.py [--key-file=FILE] ARGUMENTS.

Without control-plane keys the gateway lets whoever reaches it add workers, which then get the requests of others, load
programs (/wasm) and empty caches (tried); with a key for clients, each of them. So there is one that nobody knows.

The gateway takes the key of clients only as an argument, and every user of a node can read arguments.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from sglang_router.launch_router import launch_router, parse_router_args

KEY_FILE = "--key-file="


def main() -> None:
    words, key = sys.argv[1:], None
    if words[0].startswith(KEY_FILE):
        path = Path(words.pop(0).removeprefix(KEY_FILE))
        key = path.read_text(encoding="utf-8").strip()
        if not key:
            sys.exit(f"{path} is empty, so everybody would be admitted. Set gateway_api_key and run playbook gateway.")
    # It is no argument of the process.
    options = parse_router_args([*words, "--control-plane-api-keys", f"nobody:nobody:admin:{secrets.token_hex(32)}"])
    if key:
        options.api_key = key
    launch_router(options)


if __name__ == "__main__":
    main()
