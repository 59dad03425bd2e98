#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness of a head: a short streamed generation must bring a token. Runs in the pod; standard library only."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time


def first_token(host: str, port: int, timeout: float) -> str:
    """Return the text of the first tokens; raise OSError or ValueError when none comes in time."""
    deadline = time.monotonic() + timeout
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    body = {"prompt": "1 2 3", "max_tokens": 4, "temperature": 0, "stream": True, "model": "default"}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}")
    for raw in response:
        line = raw.decode(errors="replace").strip()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no token in {timeout:.0f} s")
        if line.startswith("data: {"):
            choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
            if choices[0].get("text"):
                return str(choices[0]["text"])
    raise ValueError("the stream ended without a token")


def fetch(host: str, port: int, path: str, timeout: float) -> str:
    """Return the body of a GET; raise OSError or ValueError."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode(errors="replace")
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=20)
    parser.add_argument("--get", metavar="PATH", help="print the answer of this path instead")
    options = parser.parse_args()
    try:
        if options.get:
            print(fetch(options.host, options.port, options.get, options.timeout))
        else:
            first_token(options.host, options.port, options.timeout)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"not ready: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
