# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install a oneshot unit with its Python code and configuration on a host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import system

UNIT = """\
[Unit]
Description={description}
DefaultDependencies=no
RequiresMountsFor={library} {config}
After=local-fs.target systemd-udevd.service systemd-modules-load.service
Wants=network-pre.target
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
ConditionPathExists={config}
{without_limit}
[Service]
Type=oneshot
RemainAfterExit={remain}
Environment=PYTHONPATH={library} PYTHONDONTWRITEBYTECODE=1
ExecStart=/usr/bin/python3 -m {package}.{module} {arguments}
TimeoutStartSec={timeout}
{retry}
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class HostUnit:
    """A oneshot unit that runs ``module`` before network-pre.target, if its configuration file exists.

    Default dependencies are off, because they would order the unit after basic.target, for which systemd-networkd does
    not wait. ``extra`` are further files with their content, which are installed and removed with the unit.
    With ``retry_s``, systemd starts the unit again so many seconds after a failure, without end. network-pre.target
    waits for the first try only: a failed start does not hold back what is ordered after it (systemd.service(5),
    RestartMode=normal).
    """

    name: str
    description: str
    module: str
    config: Path
    arguments: str
    timeout: int
    remain: bool = True
    retry_s: int = 0
    units: Path = system.UNIT_DIRECTORY
    library: Path = system.HOST_LIBRARY
    extra: Mapping[Path, str] = field(default_factory=dict)

    @property
    def unit_path(self) -> Path:
        return self.units / f"{self.name}.service"

    @property
    def wanted_path(self) -> Path:
        """Return the link that ``systemctl enable`` creates."""
        return self.units / "multi-user.target.wants" / f"{self.name}.service"

    def files(self, configuration: str) -> dict[Path, tuple[str, int]]:
        """Return content and mode of every file of the unit."""
        text = UNIT.format(
            description=self.description,
            library=self.library,
            package=system.HOST_PACKAGE,
            config=self.config,
            module=self.module,
            arguments=self.arguments,
            timeout=self.timeout,
            remain="yes" if self.remain else "no",
            without_limit="StartLimitIntervalSec=0\n" if self.retry_s else "",
            retry=f"Restart=on-failure\nRestartSec={self.retry_s}\n" if self.retry_s else "",
        )
        code = system.package_files(self.module, self.library)
        return {
            **{path: (source, 0o644) for path, source in code.items()},
            **{path: (content, 0o644) for path, content in self.extra.items()},
            self.config: (configuration, 0o600),
            self.unit_path: (text, 0o644),
        }

    def outdated(self, configuration: str) -> list[Path]:
        """Return the files that install() would write and the link that it would create."""
        stale = [path for path, (text, mode) in self.files(configuration).items() if system.differs(path, text, mode)]
        return stale + ([] if self.wanted_path.is_symlink() else [self.wanted_path])

    def install(self, configuration: str) -> None:
        """Write all files, the configuration before the unit that needs it, and enable the unit."""
        for path, (text, mode) in self.files(configuration).items():
            if system.differs(path, text, mode):
                system.write_atomic(path, text, mode)
        system.run(["systemctl", "daemon-reload"])
        system.run(["systemctl", "enable", "--quiet", self.unit_path.name])

    def present(self) -> list[Path]:
        """Return the files and links that remove() would delete."""
        own_code = self.library / system.HOST_PACKAGE / f"{self.module.replace('.', '/')}.py"
        return [path for path in (self.unit_path, self.config, own_code, *self.extra) if path.exists()]

    def remove(self) -> None:
        """Disable the unit and delete its files, except code that another unit of this collection still uses."""
        if self.unit_path.exists():
            # Stop a unit that remains active, but not one that ends by itself: it may be running this code now.
            now = ["--now"] if self.remain else []
            system.run(["systemctl", "disable", "--quiet", *now, self.unit_path.name])
        for path in self.present():
            path.unlink()
        directory = self.library / system.HOST_PACKAGE
        ours = f"-m {system.HOST_PACKAGE}._"
        others = [unit for unit in self.units.glob("gb10-*.service") if ours in unit.read_text(encoding="utf-8")]
        if not others and directory.is_dir():
            shutil.rmtree(directory)
        if self.config.parent.is_dir() and not any(self.config.parent.iterdir()):
            self.config.parent.rmdir()
        system.run(["systemctl", "daemon-reload"])
