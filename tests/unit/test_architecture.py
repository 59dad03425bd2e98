# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the layers of plugins/, what each may import, what a module ships to a host, and the group of modules."""

import ast
import re
import sys
from pathlib import Path

import architecture
import yaml

# Lowest row first. A package imports from rows below its own, never from its own row or from above.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("module_utils._common",),
    ("module_utils._host", "module_utils._kube", "module_utils._models"),
    ("module_utils._fabric", "module_utils._nccl"),
    ("module_utils._node", "module_utils._pod"),
    ("plugin_utils._controller",),
    (
        "plugin_utils._fabric",
        "plugin_utils._inventory",
        "plugin_utils._models",
        "plugin_utils._node",
        "plugin_utils._sglang",
    ),
    ("plugin_utils._bench", "plugin_utils._serving"),
    ("plugin_utils._proof",),
    ("callback", "filter", "modules"),
    ("action",),
)
ROW = {box: number for number, row in enumerate(LAYERS) for box in row}

# Libraries that code for hosts may import. Those in GUARDED may be missing on a host: import them only inside `try`.
MODULES_NEED = {"ansible"}
GUARDED = {"ansible_collections", "kubernetes", "urllib3", "yaml"}
GUARDED_IN = ("modules", "module_utils._kube")

# Packages and modules that only compute: they use no file, process, network or clock.
PURE = (
    "module_utils._common",
    "module_utils._kube",
    "module_utils._nccl",
    "module_utils._node.update",
    "plugin_utils._bench.garbage",
    "plugin_utils._bench.guard",
    "plugin_utils._bench.judge",
    "plugin_utils._bench.plots",
    "plugin_utils._bench.record",
    "plugin_utils._bench.rows",
    "plugin_utils._bench.stats",
    "plugin_utils._bench.sweep",
    "plugin_utils._controller.screen",
    "plugin_utils._fabric",
    "plugin_utils._models",
    "plugin_utils._node",
    "plugin_utils._proof.exchange",
    "plugin_utils._proof.ledger",
    "plugin_utils._serving",
    "plugin_utils._sglang",
)
# Exceptions: modules that read the collection's data files, or contain all I/O of their package.
READ_FILES = {
    "module_utils._kube.client",
    "module_utils._nccl.sources",
    "plugin_utils._sglang.catalogue",
    "plugin_utils._sglang.check",
    "plugin_utils._sglang.models",
    "plugin_utils._sglang.profile",
    "plugin_utils._sglang.profile_files",
    "plugin_utils._sglang.rules",
    "plugin_utils._sglang.schema",
}
IO_MODULES = {"asyncio", "concurrent", "http", "os", "platform", "random", "shutil", "signal", "socket", "subprocess"}
IO_MODULES |= {"tempfile", "threading", "time", "urllib"}
IO_CALLS = {"exists", "expanduser", "glob", "is_dir", "is_file", "iterdir", "mkdir", "now", "open", "read_bytes"}
IO_CALLS |= {"read_text", "readlink", "resolve", "rglob", "stat", "unlink", "write_bytes", "write_text"}

FILES = {architecture.module_name(path): path for path in architecture.files()}
MODULES = sorted(name.split(".")[1] for name in FILES if name.startswith("modules."))


def closure(name: str) -> set[str]:
    """Return all modules of the collection that are sent along with one module: its direct and indirect imports."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = {
            other for other in architecture.imported_names(FILES[waiting.pop()]) if architecture.is_ours(other)
        } - found
        found |= new
        waiting += new
    return found


def test_a_file_has_at_most_600_lines() -> None:
    assert [name for name, path in FILES.items() if len(path.read_text(encoding="utf-8").splitlines()) > 600] == []


def test_every_package_has_a_layer() -> None:
    assert set(architecture.edges()) - {"doc_fragments"} <= set(ROW)


def test_no_package_imports_from_its_own_layer_or_above() -> None:
    back = [
        f"{box} imports {other}"
        for box, others in architecture.edges().items()
        for other in others
        if ROW[other] >= ROW[box]
    ]
    assert back == []


def test_what_travels_to_hosts_imports_nothing_of_the_controller() -> None:
    graph = architecture.edges()
    for box in graph:
        if box == "modules" or box.startswith("module_utils."):
            assert {other for other in graph[box] if not other.startswith("module_utils.")} == set(), box


def test_a_module_that_converges_observes_computes_its_steps_and_applies_them() -> None:
    """netplan_transaction is no such module: its change can be undone, confirmed and restored."""
    converging = [name for name in MODULES if "shared.converging" in FILES[f"modules.{name}"].read_text("utf-8")]
    assert len(converging) > 7
    for name in converging:
        own = f"modules.{name}"
        files = [FILES[each] for each in (own, *architecture.imported_names(FILES[own])) if each in FILES]
        defined = {node.name for path in files for node in architecture.tree(path).body if hasattr(node, "name")}
        assert {"observe", "steps", "apply"} <= defined, name


def guarded_imports(path: Path) -> set[str]:
    """The packages that a file imports inside `try` and not elsewhere at its top level."""
    tree = architecture.tree(path)
    inside = {node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in ast.walk(block)}
    outside = {top_level(node) for node in ast.walk(tree) if node not in inside} - {""}
    return {top_level(node) for node in inside} - outside - {""}


def top_level(node: ast.AST) -> str:
    if isinstance(node, ast.Import):
        return node.names[0].name.split(".")[0]
    name = (node.module or "") if isinstance(node, ast.ImportFrom) and not node.level else ""
    return "" if name.startswith(architecture.PREFIX) else name.split(".")[0]


def foreign(name: str) -> set[str]:
    """Return what a file imports that is neither the collection's nor Python's nor allowed there."""
    others = {other for other in architecture.imported_names(FILES[name]) if not architecture.is_ours(other)}
    found = {other.split(".")[0] for other in others} - set(sys.stdlib_module_names)
    if architecture.unit(name) in GUARDED_IN:
        found -= MODULES_NEED | (GUARDED & guarded_imports(FILES[name]))
    return found


def test_code_for_hosts_needs_only_python() -> None:
    ours = [name for name in FILES if name.split(".")[0] in ("modules", "module_utils")]
    assert len(ours) > 100
    assert {name: found for name in ours if (found := foreign(name))} == {}


def io(name: str) -> set[str]:
    """Return the imports and calls of a file with which it reads or writes."""
    found = {other for other in architecture.imported_names(FILES[name]) if other.split(".")[0] in IO_MODULES}
    for node in ast.walk(architecture.tree(FILES[name])):
        if isinstance(node, ast.Call):
            call = node.func
            found |= {call.id} & {"open", "print", "input"} if isinstance(call, ast.Name) else set()
            found |= {f".{call.attr}()"} if isinstance(call, ast.Attribute) and call.attr in IO_CALLS else set()
    return found - {"urllib.parse"}


def test_a_pure_module_does_no_input_or_output() -> None:
    pure = {each: [name for name in FILES if f"{name}.".startswith(f"{each}.")] for each in PURE}
    assert [each for each, names in pure.items() if not names] == []
    pure = {name for names in pure.values() for name in names} - READ_FILES
    assert {name: found for name in pure if (found := io(name))} == {}


def test_a_module_ships_little_nothing_of_pods_and_the_client_of_kubernetes_only_if_it_asks_a_cluster() -> None:
    """Ansible packs all of it for each task and host."""
    for module in MODULES:
        shipped = {name for name in closure(f"modules.{module}") if name in FILES}
        assert len(shipped) <= 12, module
        packages = {architecture.unit(name) for name in shipped}
        text = FILES[f"modules.{module}"].read_text(encoding="utf-8")
        assert "module_utils._pod" not in packages, module
        assert "module_utils._kube" not in packages or "kubeconfig" in text, module


def test_the_reader_of_log_files_needs_no_client_of_kubernetes() -> None:
    """scripts/nccl_verdict.py runs where only Python is; the client would cost it half a second and 30 MiB."""
    assert not {name for name in closure("module_utils._nccl.sources") if name.startswith("module_utils._kube")}


def test_the_reader_of_imports_sees_every_form() -> None:
    names = set(architecture.imported_names(FILES["module_utils._fabric.rdma"]))
    assert "module_utils._fabric.physical_functions" in names
    assert "module_utils._nccl.causes" in set(architecture.imported_names(FILES["module_utils._nccl.statements"]))
    assert "module_utils._kube.labels" in closure("modules.node_room_info")


ROOT = Path(__file__).resolve().parents[2]


def test_the_group_has_every_module_that_talks_to_the_cluster() -> None:
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    modules = [path for path in ROOT.glob("plugins/modules/*.py") if re.search(r"shared\.cluster\b", path.read_text())]
    assert runtime["action_groups"]["cluster"] == sorted(path.stem for path in modules)


def test_an_action_says_the_cause_of_its_failure_once() -> None:
    """Ansible appends the message of the exception from which a failure was raised, and the failure already has it."""
    twice = [
        (path.name, node.lineno)
        for path in sorted(ROOT.glob("plugins/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and not isinstance(node.cause, ast.Constant | None)
        if isinstance(node.exc.func, ast.Name) and node.exc.func.id == "AnsibleActionFail"
    ]
    assert twice == []
