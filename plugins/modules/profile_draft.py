# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The action of this name runs instead; this file is its documentation.

from __future__ import annotations

DOCUMENTATION = r"""
module: profile_draft
short_description: Convert a command or a recipe to a profile
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
description:
  - Converts a command line of C(sglang.launch_server), also inside C(docker run), or a sparkrun recipe to the text of a
    profile that does the same. Findings name everything that the profile does not have, and what SGLang would refuse.
  - Reads architecture, quantization, heads and states from a model's C(config.json).
  - Runs on the controller and contacts no host.
  - The other options are those of role profile_new, without C(profile_new_). In its tasks they have its values.
extends_documentation_fragment: [gb10.cluster.shared.readonly]
options:
  profile_dirs:
    description: Directories of your own profiles, whose images and models are known too.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Convert a command line
  gb10.cluster.profile_draft:
    name: my-model
    command: sglang serve --model-path organisation/My-Model --tp-size 2 --mem-fraction-static 0.8
"""

RETURN = r"""
profile:
  description: The profile as YAML.
  returned: success
  type: str
facts:
  description: Facts about the model as JSON for the directory C(models) beside the profile; empty without C(config).
  returned: success
  type: str
sglang_version:
  description: The release for which the profile is written.
  returned: success
  type: str
left_out:
  description: What the profile does not have of its source, each with the reason. The profile has the same lines as
    comments.
  returned: success
  type: list
  elements: str
findings:
  description: Everything that the profile does not have, and what the rules say about it.
  returned: success
  type: list
  elements: dict
"""
