# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make packages of the CNI plugins that K3s has in one program, because Go cannot import a program."""

import json
import subprocess
from pathlib import Path

_MODULE = "github.com/containernetworking/plugins"
_PLUGINS = {
    "": ("meta/bandwidth", "main/bridge", "meta/firewall", "ipam/host-local", "main/loopback", "meta/portmap"),
    # The last version with flannel's plugin. The module proxy does not offer the module that it moved to.
    "@v0.9.1": ("meta/flannel",),
}


def overlay(go: str, module: Path, scratch: Path, environment: dict[str, str]) -> Path:
    """Write the sources as packages; return the file for ``go build -overlay`` that shows them below ``module``/cni."""
    replaced = {}
    for version, plugins in _PLUGINS.items():
        argv = [go, "mod", "download", "-json", _MODULE + version]
        done = subprocess.run(argv, cwd=module, env=environment, capture_output=True, text=True, check=True)
        for plugin in plugins:
            directory = Path(json.loads(done.stdout)["Dir"]) / "plugins" / plugin
            package = directory.name.replace("-", "")
            for path in directory.glob("*.go"):
                if not path.stem.endswith(("_test", "_windows")):
                    text = path.read_text().replace("package main", f"package {package}", 1)
                    copy = scratch / f"{package}-{path.name}"
                    copy.write_text(text.replace("func main()", "func Main()"))
                    replaced[str(module / "cni" / package / path.name)] = str(copy)
    result = scratch / "overlay.json"
    result.write_text(json.dumps({"Replace": replaced}))
    return result
