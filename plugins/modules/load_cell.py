#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: load_cell
short_description: Measure an OpenAI-compatible streaming server, and name invalid figures
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Sends the same prompts at a given concurrency and context, repeats them, and returns times to the first token
    and between tokens, rates, the server's own counts, and the spread over the repetitions.
  - Judges every answer while it arrives. Collapsed output, identical statistics, decoding outside the CUDA graphs
    and a server that also serves others are named in the cell's status; such a cell must not be ranked.
  - Runs on the controller, which must reach the server.
attributes:
  check_mode:
    support: full
    description: Sends nothing in check mode.
  diff_mode:
    support: none
    description: Changes nothing.
options:
  url:
    description: Base URL of the server, without C(/v1).
    type: str
    required: true
  model:
    description: Model name of the requests; empty takes the one that the server names at C(/v1/models).
    type: str
    default: ""
  api_key:
    description: Bearer token.
    type: str
  timeout:
    description: Seconds after which a silent stream fails.
    type: float
    default: 600.0
  metrics:
    description: Read C(/metrics) around each repetition; needed for the accept length and to notice requests of others.
    type: bool
    default: true
  idle_timeout:
    description: Seconds to wait for a server that still runs requests; then the cell ends as V(shared).
    type: float
    default: 60.0
  stop_at_garbage:
    description: Skip the workloads after an invalid one.
    type: bool
    default: true
  baseline:
    description:
      - Fingerprints of another cell's outputs to the same prompts by name of the workload, as C(fingerprint) of its
        record. Output far from it is garbage.
    type: dict
    default: {}
  client:
    description:
      - What sends the requests. V(sglang) is C(sglang.bench_serving); each but V(gb10) has to be installed on the
        controller, and gives its figures in the same form.
      - Only V(gb10) and V(sglang) keep the answers, so that they can be judged. The others read C(/metrics) only to see
        whether the server is idle.
    type: str
    choices: [gb10, sglang, llama-benchy, aiperf]
    default: gb10
  judge_output:
    description: Judge every answer; switch off only for a model of random weights. The record and its report say so.
    type: bool
    default: true
  strict:
    description: Fail when a cell is invalid; otherwise only its status says so.
    type: bool
    default: true
  workloads:
    description: The cells to measure, in order; an empty list only asks the server what it runs.
    type: list
    elements: dict
    required: true
    suboptions:
      concurrency:
        description: Requests that run at a time.
        type: int
        required: true
      max_tokens:
        description: Upper bound of the answer in tokens.
        type: int
        default: 3072
      context_tokens:
        description: Approximate length of the text in front of the question, in tokens.
        type: int
        default: 0
      requests:
        description: Requests per repetition; V(0) means one per stream.
        type: int
        default: 0
      duration_s:
        description: End a repetition after this many seconds, with all streams busy until then; V(0) means never.
        type: float
        default: 0.0
      token_budget:
        description: End a repetition after this many tokens of all streams together; V(0) means never.
        type: int
        default: 0
      forced:
        description: Make every request decode to O(workloads[].max_tokens).
        type: bool
        default: false
      warmup:
        description: Short requests before the first repetition.
        type: int
        default: 1
      repetitions:
        description: How often the cell is measured.
        type: int
        default: 1
      seed:
        description: Chooses prompts and sampling.
        type: int
        default: 1
      draft_tokens:
        description:
          - Draft tokens per verify step, to derive the accept rate from the accept length. When it is left out, the
            server is asked.
        type: int
"""

EXAMPLES = r"""
- name: Measure one, four and eight streams
  gb10.cluster.load_cell:
    url: http://10.43.0.12:30000
    model: google/gemma-4-31B-it
    workloads:
      - {concurrency: 1, repetitions: 5}
      - {concurrency: 4, repetitions: 5}
      - {concurrency: 8, repetitions: 5}
  delegate_to: localhost
"""

RETURN = r"""
cells:
  description:
    - One record per workload. C(status) is V(ok), V(garbage), V(shared), V(eager), V(failed) or V(infrastructure).
    - C(peak_tok_s) is the sum of the requests' own rates, C(wall_tok_s) tokens over wall time; both carry mean,
      spread and percentiles over the repetitions.
  returned: always
  type: list
  elements: dict
server_info:
  description: The server's own settings, without secrets; empty where it does not tell them.
  returned: always
  type: dict
took_s:
  description: Seconds that all workloads took.
  returned: always
  type: float
msg:
  description: What was measured, or which cells are invalid and why.
  returned: always
  type: str
"""
