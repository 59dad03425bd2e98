# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start SGLang's Model Gateway with the API key of a file: start_gateway.py KEY-FILE ARGUMENTS.

The gateway (sglang_router 0.3.2) takes the key only as an argument, and every user of a node can read arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sglang_router.launch_router import launch_router, parse_router_args


def main() -> None:
    path = Path(sys.argv[1])
    key = path.read_text(encoding="utf-8").strip()
    if not key:
        sys.exit(f"{path} is empty, so everybody would be admitted. Set gateway_api_key and run playbook gateway.")
    options = parse_router_args(sys.argv[2:])
    options.api_key = key
    launch_router(options)


if __name__ == "__main__":
    main()
