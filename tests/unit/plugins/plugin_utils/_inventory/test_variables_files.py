# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that files of an inventory which Ansible does not read, or cannot read, are named."""

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.files import (
    check_files,
    check_places,
    check_sources,
    check_text,
)


def inventory(directory: Path, *files: str) -> list[tuple[str, str]]:
    """Write files, and return severity and key of what is found."""
    for file in files:
        path = directory / file
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("a: 1\n")
    found = check_files([directory], ["all", "gb10_nodes"], ["spark1", "spark2.lan"])
    return [(finding.severity, finding.key) for finding in found]


def test_files_of_groups_and_hosts_that_do_not_exist_are_named(tmp_path: Path) -> None:
    files = ["group_vars/all", "group_vars/gb10_node.yml", "group_vars/rack.yml", "host_vars/spark9.lan/a.yml"]
    assert inventory(tmp_path, *files, "host_vars/localhost.yml") == [
        ("error", "group_vars/gb10_node"),
        ("warning", "group_vars/rack"),
        ("warning", "host_vars/spark9.lan"),
    ]


def test_a_file_with_an_extension_that_ansible_does_not_read_is_refused(tmp_path: Path) -> None:
    assert inventory(tmp_path, "group_vars/gb10_nodes.txt") == [("error", "group_vars/gb10_nodes.txt")]


def test_a_backup_beside_the_file_that_is_read_is_no_mistake(tmp_path: Path) -> None:
    files = ["group_vars/all.yml", *(f"group_vars/gb10_nodes.yml{end}" for end in ("", ".bak", "~"))]
    files += ["group_vars/README.md", "host_vars/spark1.yml", "host_vars/spark2.lan/a.yml"]
    assert inventory(tmp_path, *files) == []


def test_a_misspelt_directory_of_variables_is_refused(tmp_path: Path) -> None:
    (found,) = inventory(tmp_path, "group_var/gb10_nodes.yml", "templates/a.yml")
    assert found == ("error", str(tmp_path / "group_var"))


def test_variables_beside_the_hosts_are_named_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "spark1.yml").write_text("all:\n  hosts: {}\nunused: {}\n")
    (tmp_path / "spark2.lan.yml").write_text("strict: false\nplugin: constructed\n")
    assert inventory(tmp_path, "gb10_nodes.yml") == [("error", str(tmp_path / "gb10_nodes.yml"))]
    (finding,) = check_files([tmp_path], ["gb10_nodes"], ["spark1"])
    assert finding.remedy.endswith(
        f"mkdir -p {tmp_path}/group_vars && mv {tmp_path}/gb10_nodes.yml {tmp_path}/group_vars/"
    )
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/gb10_nodes.yml").touch()
    (finding,) = check_files([tmp_path], ["gb10_nodes"], ["spark1"])
    assert finding.remedy == f"Move its lines into {tmp_path}/group_vars/gb10_nodes.yml, and remove it."


def test_a_directory_of_inventories_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("mine", "spare"):
        (tmp_path / name / "group_vars").mkdir(parents=True)
    (finding,) = check_sources(["192.0.2.1,", str(tmp_path)])
    assert finding.key == f"-i {tmp_path}"
    assert finding.remedy == f"Name one of them with -i: {tmp_path}/mine, {tmp_path}/spare."
    assert check_sources([str(tmp_path / "mine")]) == []


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["group_vars/gb10_cluster.yml"], "group_vars"),
        (["home/group_vars/gb10_cluster.yml"], "home/group_vars"),
        (["group_vars/gb10_cluster.yml", "mine/group_vars/all.yml"], ""),
        (["group_vars/other.yml"], ""),
        (["group_vars/gb10_cluster.yml", "hosts.yml"], ""),
    ],
)
def test_group_vars_in_the_wrong_place_are_named_with_the_command_that_moves_them(
    tmp_path: Path, files: list[str], named: str
) -> None:
    for file in ["mine/hosts.yml", "home/notes", *files]:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("a: 1\n")
    found = check_places([tmp_path / "mine"], ["all", "gb10_cluster"], tmp_path / "home")
    assert [finding.remedy for finding in found] == (
        [f"Move it there: mv {tmp_path}/{named} {tmp_path}/mine/"] if named else []
    )


def test_the_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_bytes("a: 1\n# Köln\n".encode("latin-1"))
    (tmp_path / "hosts.yml").write_text("# Köln\n", encoding="utf-8")
    program = tmp_path / "program"
    program.write_bytes(b"\xff")
    program.chmod(0o755)
    for source in (tmp_path, tmp_path / "hosts.yml"):
        (finding,) = check_text([str(source), "192.0.2.1,"])
        assert finding.key == f"{tmp_path}/group_vars/all.yml:2"
        assert "iconv -f LATIN1 -t UTF-8" in finding.remedy


def test_what_ansible_does_not_read_as_text_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\xff")
    (tmp_path / "data").write_bytes(b"\0\xff")
    (tmp_path / "notes.md").write_bytes(b"\xff")
    (tmp_path / "hosts").write_text("spark1\n", encoding="utf-16")
    assert [finding.key for finding in check_text([str(tmp_path)])] == [f"{tmp_path}/hosts:1"]


def test_a_key_that_a_mapping_has_twice_is_named_whatever_ansible_is_set_to(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    variables = tmp_path / "group_vars" / "all.yml"
    variables.write_text("a: &a {b: 1}\nc: {<<: *a, b: 2}\nd: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  61\nc: 3\n")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("spark1: {ansible_host: a, gb10_node_id: 1, gb10_node_id: 2}\nspark2:\n- {e: 1}\n- {e: 2}\n")
    (tmp_path / "c.yml").write_text("a: &a [{f: 1, f: 2}]\nb: *a\n")
    (tmp_path / "hosts").write_text("[gb10_nodes]\nspark1 a=1\nspark1 a=2\n")
    found = check_text([str(tmp_path)])
    assert [finding.key for finding in found] == [
        f"{tmp_path}/c.yml:1: f",
        f"{variables}:6: c",
        f"{hosts}:1: gb10_node_id",
    ]
    assert found[1].reason.startswith("line 2 has this key")


def test_a_node_id_that_yaml_reads_as_octal_is_named(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    lines = [
        "spark7: {gb10_node_id: 07}",
        "spark8: {gb10_node_id: 08}",
        "spark10: {gb10_node_id: 010, x: 1}",
        "# gb10_node_id: 010",
    ]
    hosts.write_text("\n".join(lines))
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "spark11.yml").write_text("gb10_node_id: 011")
    found = {finding.key: (finding.value, finding.reason, finding.remedy) for finding in check_text([str(hosts)])}
    assert list(found) == [f"{tmp_path}/host_vars/spark11.yml:1: gb10_node_id", f"{hosts}:3: gb10_node_id"]
    value, reason, remedy = found[f"{hosts}:3: gb10_node_id"]
    assert (value, reason.endswith("so this is 8"), remedy.startswith("Write 10, or 8 if")) == ("010", True, True)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("hosts.yml", "a: [1\nb: 2\n", 2),
        ("group_vars/all.yml", "a: 1\nb: x: y\n", 2),
        ("group_vars/all", 'a: "x\n', 2),
        ("host_vars/spark1/a.yaml", "a:\n\t- 1\n", 2),
        ("host_vars/spark1/a.yml", "a: @x\n", 1),
        ("group_vars/all.yml", "# Köln\na: 1\nb: \x07\n", 3),
        ("group_vars/all.json", '{\n\t"a": 1\n}\n', 0),
        ("hosts", "[gb10_nodes]\nspark1 a='x: [\n", 0),
        ("group_vars/all.yml", "a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  61\n", 0),
        ("group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n", 0),
    ],
)
def test_a_file_that_is_not_yaml_is_named_with_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = [(finding.rule, finding.key) for finding in check_text([str(tmp_path)])]
    assert found == ([("inventory.yaml", f"{path}:{line}")] if line else [])


def test_all_files_that_cannot_be_read_are_reported_at_once(tmp_path: Path) -> None:
    for name, text in {"a": "x: [\n", "b": "x: {\n", "c": "$ANSIBLE_VAULT;1.1;AES256\n6162\n"}.items():
        path = tmp_path / "group_vars" / f"{name}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    rules = {Path(f.key).name: f.rule for f in check_text([str(tmp_path)], password=False)}
    assert rules == {"a.yml:2": "inventory.yaml", "b.yml:2": "inventory.yaml", "c.yml": "inventory.vault"}
