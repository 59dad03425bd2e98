#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report which transport NCCL used according to its logs; needs Python 3.11 and nothing else.

nccl_verdict.py rank0.log rank1.log.gz          # exit status 0 only if every file shows RDMA on every rank
kubectl logs my-pod | nccl_verdict.py --json -
nccl_verdict.py --expect Socket --nodes 2 *.log
"""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import EVIDENCE
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import UNREADABLE, open_log, unpacked
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import (
    TEXT_REMARK,
    Expectation,
    Report,
)

# A log may name a network so that the terminal would show "ok" in place of "FAIL".
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "?")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n", maxsplit=1)[0],
        epilog="Exit status: 0 every file satisfies the expectation, 1 one does not, 2 one cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="log, plain, gzip, xz or bzip2; - is standard input")
    parser.add_argument("--json", action="store_true", help="print a list with one object per file")
    parser.add_argument(
        "--expect",
        default="rdma",
        metavar="rdma|NET[,NET]",
        help="rdma (default), or patterns of the network names that are allowed: IB,IBext*",
    )
    parser.add_argument("--evidence", choices=EVIDENCE[2:], default="channels", help="weakest evidence that is enough")
    parser.add_argument("--ranks", type=int, default=0, help="ranks that must be seen in every file")
    parser.add_argument("--nodes", type=int, default=0, help="nodes that must be seen in every file")
    parser.add_argument("--min-devices", type=int, default=0, help="devices that every rank must use")
    parser.add_argument("--gdr", action=argparse.BooleanOptionalAction, default=None, help="GPUDirect RDMA on or off")
    parser.add_argument("--complete", action="store_true", help="require a communicator that finished its set-up")
    parser.add_argument("--allow-intra", action="store_true", help="accept a job that runs on one node only")
    parser.add_argument("--allow-unknown", action="store_true", help="accept a log without evidence")
    return parser.parse_args(arguments)


def judge_file(name: str, expect: Expectation) -> Report:
    """Read and judge one file; raises UNREADABLE."""
    with unpacked(sys.stdin.buffer) if name == "-" else open_log(Path(name)) as stream:
        return Report(NcclLog().read(stream.read), name, expect)


def main(arguments: list[str] | None = None) -> int:
    """Judge all files; return 0 if all satisfy the expectation, 1 if one does not, 2 if one cannot be read."""
    options = parse_arguments(arguments)
    given = {field.name: getattr(options, field.name) for field in fields(Expectation) if field.name != "networks"}
    expect = Expectation(() if options.expect == "rdma" else tuple(options.expect.split(",")), **given)
    results, status = [], 0
    for name in options.files:
        try:
            report = judge_file(name, expect)
        except UNREADABLE as error:
            print(f"{name}: {error}".translate(_CONTROL), file=sys.stderr)
            status = 2
            results.append({"file": name, "verdict": "unknown", "satisfied": False, "error": str(error)})
            continue
        status = max(status, 0 if report.satisfied else 1)
        results.append({"file": name, **report.as_dict(), "source": "text", "remark": TEXT_REMARK})
        if not options.json:
            print((("ok    " if report.satisfied else "FAIL  ") + report.msg).translate(_CONTROL))
    if results and not options.json:
        print(f"note: {TEXT_REMARK}")
    if options.json:
        json.dump(results, sys.stdout, indent=2)
        print()
    return status


if __name__ == "__main__":
    run(main)
