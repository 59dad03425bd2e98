# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print a text line by line
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Prints tables and plans so that people can read them with every result format. C(ansible.builtin.debug) prints a
    text of many lines as one line of JSON unless C(callback_result_format) is C(yaml).
  - A task that runs on several hosts prints the name of its host above the text.
  - Runs on the controller.
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  text:
    description: What to print.
    type: str
    required: true
  rows:
    description: A table to print below the text. All rows have the keys of the first one.
    type: list
    elements: dict
    default: []
  wrap:
    description: Wrap lines that are longer than the terminal is wide. Lines of a command stay as they are.
    type: bool
    default: false
  at_end:
    description: Print the text once, below the recap of the run.
    type: bool
    default: false
  findings:
    description:
      - Findings as dictionaries. If one is an error, the task fails with the text as its message, and they are printed
        once, below the recap of the run.
      - Otherwise they are printed instead of the text; an empty list prints nothing.
    type: list
    elements: dict
  failed_as:
    description:
      - If not empty, the task fails. Its message is the first line, and the text is printed below the recap of the run
        on at most a screen.
      - All of it goes to C(failed-NAME.txt) in C(gb10_results_dir), where C(NAME) is this value.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the plan of the fabric
  gb10.cluster.show:
    text: "{{ fabric_plan_result.table }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: The text, for callbacks that record results.
  returned: always
  type: str
"""
