# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is read of APT's simulation and of GRUB's configuration, and which packages stay."""

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import update
from ansible_collections.gb10.cluster.plugins.module_utils._node.update import Change

SIMULATED = """\
Remv nvidia-old [1.0-1]
Inst linux-image-6.17.0-1015-nvidia (6.17.0-1015.15 Ubuntu:24.04/noble-updates [arm64])
Inst libc6:armhf [2.39-0ubuntu8.4] (2.39-0ubuntu8.5 Ubuntu:24.04/noble-updates [armhf]) []
Inst base-files [13ubuntu10] (13ubuntu10.1 Ubuntu:24.04/noble-updates [arm64])
Conf base-files (13ubuntu10.1 Ubuntu:24.04/noble-updates [arm64])
"""
GRUB = """\
menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-11-22' {
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-11-22' {
\tmenuentry 'Linux 6.17.0-1015' --class os $menuentry_id_option 'gnulinux-6.17.0-1015-nvidia-advanced-11-22' {
\tmenuentry 'recovery mode' --class os $menuentry_id_option 'gnulinux-6.17.0-1015-nvidia-recovery-11-22' {
\tmenuentry 'Linux 6.14.0-1013' --class os $menuentry_id_option 'gnulinux-6.14.0-1013-nvidia-advanced-11-22' {
}
"""


def test_a_simulation_has_what_would_change() -> None:
    assert update.parse_simulation(SIMULATED) == [
        Change("nvidia-old", "1.0-1", ""),
        Change("linux-image-6.17.0-1015-nvidia", "", "6.17.0-1015.15"),
        Change("libc6:armhf", "2.39-0ubuntu8.4", "2.39-0ubuntu8.5"),
        Change("base-files", "13ubuntu10", "13ubuntu10.1"),
    ]
    assert update.parse_simulation("Conf bash (1 x)\n" * update.LINES) == []


@pytest.mark.parametrize(
    "line",
    [
        "Inst --force-yes [1] (2 x [arm64])",
        "Inst {{ lookup('pipe','id') }} (2 x [arm64])",
        "Inst ../../etc/passwd [1] (2 x [arm64])",
        "Inst bash [1] ($(id) x [arm64])",
        "Inst bash",
        "Remv bash",
        "Inst b\x1b[2Jash [1] (2 x [arm64])",
        "Inst " + "a" * 200 + " [1] (2 x [arm64])",
        "Conf bash (1 x)\n" * (update.LINES + 1),
    ],
)
def test_a_line_of_another_form_is_refused_and_not_left_out(line: str) -> None:
    with pytest.raises(ValueError) as refused:
        update.parse_simulation(line)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("name", "before", "after", "held"),
    [
        ("linux-nvidia-hwe-24.04", "6.17.0.1014.14", "7.0.0.1019.19", True),
        ("linux-image-generic-hwe-24.04", "6.17.0-31.31", "7.0.0-31.31", True),
        ("linux-modules-nvidia-580-open-nvidia-hwe-24.04", "6.17.0-1014.14+1000", "7.0.0-1019.19", True),
        ("linux-image-arm64", "6.12.107-1", "6.16.3-1", True),
        ("linux-nvidia-64k-hwe-24.04-edge", "6.17.0.1", "7.0.0.1", True),
        # The next one of the same line, a new package, and packages that only share a part of the name
        ("linux-nvidia-hwe-24.04", "6.17.0.1014.14", "6.17.0.1015.15", False),
        ("linux-nvidia-hwe-24.04", "", "7.0.0.1019.19", False),
        ("linux-firmware", "20240318.1", "20250101.1", False),
        ("linux-base", "4.12", "4.15", False),
        ("linux-nvidia-hwe-24.04", "6.17.0.1014.14", "", False),
    ],
)
def test_a_metapackage_of_another_line_is_held(name: str, before: str, after: str, held: bool) -> None:
    assert update.to_hold([Change(name, before, after)], ["6.17"]) == ([name] if held else [])


def test_a_hold_is_simulated_as_dpkg_writes_it() -> None:
    status = "Package: a\nStatus: install ok installed\n\nPackage: ab\nStatus: install ok installed\nDepends: a\n"
    assert update.held_status(status, ["a"]) == status.replace("install ok", "hold ok", 1)
    assert update.held_status(status, []) == status


def test_entries_are_named_as_grub_reboot_takes_them() -> None:
    root = "gnulinux-advanced-11-22>gnulinux-"
    assert update.entries(GRUB) == {
        "6.17.0-1015-nvidia": f"{root}6.17.0-1015-nvidia-advanced-11-22",
        "6.14.0-1013-nvidia": f"{root}6.14.0-1013-nvidia-advanced-11-22",
    }
    flat = "menuentry 'x' $menuentry_id_option 'gnulinux-6.12.107+deb13-arm64-advanced-/dev/sda1' {"
    assert list(update.entries(flat).values()) == ["gnulinux-6.12.107+deb13-arm64-advanced-/dev/sda1"]
    assert update.entries("menuentry 'x' $menuentry_id_option '--help' {") == {}


@pytest.mark.parametrize(
    ("kernels", "running", "line", "wanted"),
    [
        (["6.17.0-1014-nvidia", "6.17.0-1015-nvidia"], "6.17.0-1014-nvidia", "6.17", "6.17.0-1015-nvidia"),
        (["6.17.0-1009-nvidia"], "6.17.0-1014-nvidia", "6.17", ""),
        (["6.17.0-1015-generic", "6.17.0-1015-nvidia-64k"], "6.17.0-1014-nvidia", "6.17", ""),
        (["7.0.0-1019-nvidia"], "6.17.0-1014-nvidia", "6.17", ""),
        (["7.0.0-1019-nvidia", "6.17.0-1015-nvidia"], "6.17.0-1014-nvidia", "7.0", "7.0.0-1019-nvidia"),
        (["6.12.107+deb13-arm64", "6.12.99+deb13-arm64"], "6.12.99+deb13-arm64", "6.12", "6.12.107+deb13-arm64"),
        (["6.12.107+deb13-cloud-arm64"], "6.12.99+deb13-arm64", "6.12", ""),
        ([], "", "6.17", ""),
    ],
)
def test_the_next_kernel_is_a_newer_one_of_the_same_flavour_and_line(
    kernels: list[str], running: str, line: str, wanted: str
) -> None:
    assert update.next_kernel(kernels, running, ["", line]) == wanted


def test_a_driver_that_is_replaced_needs_a_reboot() -> None:
    assert update.needs_reboot([Change("libnvidia-compute-580", "580.95.05-1", "580.126.09-1")])
    assert not update.needs_reboot([Change("libnvidia-compute-580", "", "580.126.09-1"), Change("bash", "1", "2")])
    changes = [Change("linux-image-unsigned-6.17.0-1-nvidia", "", "1"), Change("linux-image-nvidia", "1", "2")]
    assert update.images([*changes, Change("linux-image-6.14.0-1-nvidia", "1", "")]) == ["6.17.0-1-nvidia"]
