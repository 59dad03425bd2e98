# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workload of one cell. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """The requests of one cell.

    ``forced`` makes every request decode ``max_tokens`` tokens (``ignore_eos`` and ``min_tokens``); without it, short
    answers of the model would end the cell within a second. ``requests`` of 0 means one request per stream.
    ``duration_s`` or ``token_budget`` end a repetition: all streams stay busy until then and are cut. ``draft_tokens``
    is the number of tokens that the server verifies per step.
    """

    concurrency: int
    max_tokens: int = 3072
    context_tokens: int = 0
    requests: int = 0
    duration_s: float = 0.0
    token_budget: int = 0
    forced: bool = False
    warmup: int = 1
    repetitions: int = 1
    seed: int = 1
    draft_tokens: int | None = None

    @property
    def limited(self) -> bool:
        """Return whether a budget ends the repetitions."""
        return self.duration_s > 0 or self.token_budget > 0

    @property
    def name(self) -> str:
        """Return a short name: context and concurrency."""
        return f"c{self.context_tokens}-n{self.concurrency}"
