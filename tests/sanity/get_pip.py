# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the pip that ansible-test needs into an empty virtual environment, from the package index.

ansible-test downloads its bootstrap script from a server that a machine behind a package mirror cannot reach.
If its cache has a script of that name, it uses that one.
"""

import ensurepip
import importlib.util
import re
import ssl
import subprocess
import sys
from pathlib import Path

# options of get-pip.py itself, which pip does not know
OWN_OPTIONS = ("--no-setuptools", "--no-wheel")


def wanted_versions() -> list[str]:
    """Return every pip version that the installed ansible-test may ask for."""
    spec = importlib.util.find_spec("ansible_test")
    if spec is None or spec.origin is None:
        raise SystemExit("ansible-test is not installed in this environment: run `make venv` first")
    source = Path(spec.origin).parent / "_internal" / "python_requirements.py"
    return sorted(set(re.findall(r"""["']?pip["']?\s*[=:]\s*["']([0-9.]+)["']""", source.read_text())))


def main() -> None:
    if sys.argv[1:] == ["--versions"]:
        print(*wanted_versions())
        return
    ensurepip.bootstrap()
    wanted = [argument for argument in sys.argv[1:] if argument not in OWN_OPTIONS]
    # The pip of Python 3.11 and 3.12 does not read the system's certificates, and ansible-test drops PIP_CERT.
    paths = ssl.get_default_verify_paths()
    trusted = next((path for path in (paths.cafile, paths.openssl_cafile) if path and Path(path).is_file()), None)
    certificates = ["--cert", trusted] if trusted else []
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *certificates, *wanted], check=True)


if __name__ == "__main__":
    main()
