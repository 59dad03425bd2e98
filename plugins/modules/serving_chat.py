# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_chat
short_description: Ask a running group one question
version_added: 0.1.0
description:
  - Sends one question to the head of a serving group, and shows the answer while it arrives, with the time to the first
    token and the tokens per second.
  - The request is sent inside the head's pod, so it needs no address and no forwarded port, and the way to the
    controller is not measured.
  - A gateway and its API key are not used.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.group, gb10.cluster.shared.readonly]
options:
  question:
    description: The question.
    type: str
    required: true
  tokens:
    description: Most tokens of the answer.
    type: int
    default: 512
"""

EXAMPLES = r"""
- name: Ask the group a question
  gb10.cluster.serving_chat:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    instance: gemma-4-31b-it
    question: Why is the sky blue?
"""

RETURN = r"""
answer:
  description: The text of the answer, with what the model thought before it.
  returned: success
  type: str
tokens:
  description: Tokens of the answer, as the server counted them.
  returned: success
  type: int
first_token_seconds:
  description: Seconds from sending the question to the first text.
  returned: success
  type: float
seconds:
  description: Seconds from sending the question to the last text.
  returned: success
  type: float
msg:
  description: The figures as a sentence.
  returned: success
  type: str
"""
