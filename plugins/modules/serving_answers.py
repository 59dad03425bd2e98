# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_answers
short_description: Ask a running group questions with known answers
version_added: 0.1.0
description:
  - Asks the served model questions whose answers are known, because a server whose health check passes may answer with
    one token over and over.
  - Asks one stream, the same prompt again at temperature 0, four streams at once, a call of a tool and a thought where
    the command line has the parsers, and for a note in the middle of a long prompt. It ends with the first of these
    that has a wrong answer.
  - Prints one screen at the end of the run if an answer is wrong or none comes. It has what was asked, what came, and
    the settings under suspicion.
  - The requests are sent inside the head's pod. A model that only embeds is not asked.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  plan:
    description: The plan of the group, as returned by module serving_plan.
    type: dict
    required: true
  namespace:
    description: Namespace of the group.
    type: str
    required: true
  questions:
    description:
      - V(quick) asks for one note, in a prompt that fills a quarter of the C(context_length) of the command line, at
        most 32,768 tokens.
      - V(full) asks for notes in prompts that fill 1/4, 1/2 and 9/10 of it. V(off) asks nothing.
    type: str
    choices: ["off", quick, full]
    default: quick
  timeout:
    description: Seconds that one answer may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Ask the group what is known
  gb10.cluster.serving_answers:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    plan: "{{ ansible_facts['gb10_serving_plan'] }}"
"""

RETURN = r"""
answers:
  description: What was asked, with the beginning of its answer, its seconds and the tokens of its prompt.
  returned: success
  type: list
  elements: dict
"""
