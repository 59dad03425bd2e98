# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: load_cell
short_description: Measure an OpenAI-compatible streaming server, and mark invalid results
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Sends the same prompts at a given concurrency and context length, repeats them, and returns the times to the first
    token and between tokens, the rates, the server's own counts, and the spread over the repetitions.
  - Judges every answer while it arrives. The cell's status names collapsed output, identical statistics, decoding
    outside the CUDA graphs, and a server that also serves other clients. Do not rank a cell with such a status.
  - Runs on the controller, which must be able to reach the server.
  - Shows every repetition, and every 30 seconds how long the measurement has run.
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
    description: Model name for the requests; empty uses the name that the server reports at C(/v1/models).
    type: str
    default: ""
  api_key:
    description: Bearer token.
    type: str
  timeout:
    description: Seconds without data after which a stream fails.
    type: float
    default: 600.0
  metrics:
    description: Read C(/metrics) around each repetition. Required for the accept length and to detect other clients.
    type: bool
    default: true
  idle_timeout:
    description: Seconds to wait while the server still runs other requests; after that the cell ends as V(shared).
    type: float
    default: 60.0
  judge_output:
    description: Judge every answer. Disable this only for a model with random weights; record and report say so.
    type: bool
    default: true
  strict:
    description: Fail if a cell is invalid. Otherwise only the cell's status shows it.
    type: bool
    default: true
  workloads:
    description: The cells to measure, in order. An empty list only reads the server's settings.
    type: list
    elements: dict
    required: true
    suboptions:
      concurrency:
        description: Number of requests that run at the same time.
        type: int
        required: true
      max_tokens:
        description: Maximum length of the answer in tokens.
        type: int
        default: 3072
      context_tokens:
        description: Approximate length of the text in front of the question, in tokens.
        type: int
        default: 0
      requests:
        description: Number of requests per repetition; V(0) means one per stream.
        type: int
        default: 0
      duration_s:
        description: End a repetition after this many seconds and keep all streams busy until then; V(0) means never.
        type: float
        default: 0.0
      forced:
        description: Make every request generate O(workloads[].max_tokens) tokens.
        type: bool
        default: false
      warmup:
        description: Number of short requests before the first repetition.
        type: int
        default: 1
      repetitions:
        description: Number of times that the cell is measured.
        type: int
        default: 1
      seed:
        description: Seed for the choice of prompts and for sampling.
        type: int
        default: 1
      draft_tokens:
        description:
          - Draft tokens per verify step, used to derive the accept rate from the accept length. If omitted, the server
            is asked.
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
    - C(peak_tok_s) is the sum of the requests' own rates, C(wall_tok_s) is tokens divided by wall time. Both have mean,
      spread and percentiles over the repetitions.
  returned: always
  type: list
  elements: dict
server_info:
  description: The server's own settings, without secrets; empty if it does not report them.
  returned: always
  type: dict
"""
