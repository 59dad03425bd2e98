# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED arguments: the release's own flags with their defaults and choices, and one check of its resolver."""

import argparse
from collections.abc import Sequence
from typing import Any

from .. import _cli, _model


class ServerArgs:
    """The parsed arguments under the names of the parser."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add every flag of the simulated release."""
        _cli.add_flags(parser, _cli.version())

    def check_server_args(self) -> None:
        """Check what every release checks."""
        values = vars(self)
        tp = values.get("tp_size") or values.get("tensor_parallel_size") or 1
        pp = values.get("pp_size") or values.get("pipeline_parallel_size") or 1
        assert tp * pp % (values.get("nnodes") or 1) == 0, "tp_size must be divisible by number of nodes"


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    """Return the arguments of a command line; exit 2 if the parser refuses it."""
    if "crash-in-check" in _model.faults():
        raise OSError("libcuda.so.1: cannot open shared object file (asked for by SGLANG_STANDIN_FAULT)")
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    return ServerArgs(vars(parser.parse_args(list(argv))))
