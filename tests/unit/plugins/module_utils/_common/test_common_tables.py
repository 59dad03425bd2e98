# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that columns are aligned and that no line ends in blanks."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.tables import align


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert align([["rank", "node"], ["0", "spark1"], ["10", ""]]) == ["rank  node", "0     spark1", "10"]


def test_a_table_without_rows_has_no_lines() -> None:
    assert align([]) == []


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        align([["a"], ["a", "b"]])
