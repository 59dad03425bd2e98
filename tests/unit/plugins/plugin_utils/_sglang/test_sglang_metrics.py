# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.metrics import difference, parse_metrics

PAGE = """# HELP sglang:num_running_reqs requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 1.0
sglang:num_running_reqs{tp_rank="1"} 3.0
sglang:num_queue_reqs{tp_rank="0"} 2.0
sglang:generation_tokens_total{model_name="m"} %s
sglang:spec_verify_calls_total{model_name="m"} %s
sglang:cuda_graph_passes_total{mode="decode_cuda_graph"} %s
sglang:cuda_graph_passes_total{mode="decode_none"} %s
sglang:spec_accept_length{tp_rank="0"} 2.5
python_info 1.0
broken line
"""


def test_gauges_of_ranks_are_one_and_busy_counts_the_queue() -> None:
    scrape = parse_metrics(PAGE % (0, 0, 0, 0))
    assert scrape.gauges["num_running_reqs"] == 3.0
    assert scrape.busy == 5.0


def test_accept_length_is_of_the_cell_alone() -> None:
    done = difference(parse_metrics(PAGE % (100, 40, 10, 0)), parse_metrics(PAGE % (400, 140, 110, 7)), draft_tokens=4)
    assert done["tokens"] == 300.0
    assert done["accept_length"] == pytest.approx(3.0)
    assert done["accept_length_source"] == "counters"
    assert done["accept_rate"] == pytest.approx(2 / 3)
    assert done["eager_passes"] == 7.0


def test_an_older_server_has_only_its_gauge() -> None:
    page = 'sglang:spec_accept_length{tp_rank="0"} 2.5\n'
    done = difference(parse_metrics(page), parse_metrics(page))
    assert (done["accept_length"], done["accept_length_source"], done["accept_rate"]) == (2.5, "gauge", None)
    assert done["eager_passes"] is None


def test_the_gauge_of_an_older_server_is_averaged_over_its_samples() -> None:
    before, *during, after = (parse_metrics(f"sglang:spec_accept_length {n}\n") for n in (3.5, 3.5, 2.0, 3.0, 2.5))
    done = difference(before, after, 4, during)
    assert (done["accept_length"], done["accept_length_source"]) == (2.5, "gauge")
    assert done["accept_rate"] == pytest.approx(0.5)


def test_a_server_without_speculation_has_no_accept_length() -> None:
    assert difference(parse_metrics(""), parse_metrics("sglang:spec_accept_length 0.0\n"))["accept_length"] is None
