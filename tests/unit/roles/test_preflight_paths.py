# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test of which directories preflight reads the free space if nobody names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

DEFAULTS = Path(__file__).resolve().parents[3] / "roles" / "preflight" / "defaults" / "main.yml"


@pytest.mark.parametrize(
    ("inventory", "paths"),
    [
        ({}, ["/var/lib/rancher/k3s"]),
        ({"k3s_data_dir": "/data/k3s", "gb10_models_dir": "/srv/models"}, ["/data/k3s", "/srv/models"]),
        ({"gb10_kubernetes_provider": "existing", "gb10_models_dir": "/srv/models"}, ["/var/lib", "/srv/models"]),
    ],
)
def test_images_of_a_cluster_of_others_are_not_looked_for_in_the_directory_of_k3s(
    inventory: dict[str, Any], paths: list[str]
) -> None:
    loader = DataLoader()
    defaults = loader.load_from_file(str(DEFAULTS), trusted_as_template=True)
    values = Templar(loader=loader, variables={**defaults, **inventory})
    assert values.template(defaults["preflight_paths"]) == paths
