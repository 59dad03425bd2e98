# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the mutation runner: which faults it makes, which tests it chooses, and a whole run on a small checkout."""

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import faults
import mutants
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

CASES = [
    ("x = a < b", ["a < b → a <= b", "a < b → a >= b"]),
    ("x = a and b", ["a and b → b", "a and b → a"]),
    ("x = not a", ["not a → a"]),
    ("x = a + b", ["a + b → a", "a + b → b"]),
    ("x = a - 2", ["a - 2 → a + 2", "2 → 3"]),
    ("x = True", ["True → False"]),
    ("if a:\n    b = c", ["if a: → if True:", "if a: → if False:"]),
    ("for a in b:\n    c = a", ["for a in b: → for a in list(b)[:1]:"]),
    ("x = {a for a in b if c}", [" for a in b if c → for a in b", " for a in b if c → for a in list(b)[:1] if c"]),
    ("def f():\n    return a", ["return a → return None"]),
    ("a()", ["a() → pass"]),
    ("a += b", ["a += b → pass"]),
    (
        "try:\n    a = b\nexcept (C, D):\n    e = f",
        ["except (C, D): → except (D,):", "except (C, D): → except (C,):"],
    ),
    ("@a(frozen=True)\nclass B:\n    c: d = e", []),
    ('x = f"{a + b}"', []),
    ("x = a(timeout=60)", []),
    ("def f():\n    return 'words'", []),
    ("if __name__ == '__main__':\n    a()", []),
]


@pytest.mark.parametrize(("source", "expected"), CASES, ids=[source for source, _faults in CASES])
def test_the_faults_of_a_line(
    source: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(source)
    found = list(mutants.mutants(Path("a.py")))
    assert [mutant.change for mutant in found] == [change.strip() for change in expected]
    original = ast.unparse(ast.parse(source))
    assert all(ast.unparse(mutant.tree()) != original for mutant in found)


@pytest.mark.parametrize(
    ("package", "some"),
    [
        (
            "module_utils/_fabric",
            {
                "module_utils/_fabric/test_netplan_undo.py",
                "modules/test_netplan_transaction.py",
            },
        ),
        (
            "_host",
            {
                "modules/test_k3s_modules.py",
                "action/test_k3s_preconditions_action.py",
                "tests/unit/hostile/test_hostile_archive.py",
            },
        ),
        ("modules/nic_qos", {"modules/test_port_modules.py"}),
    ],
)
def test_the_tests_of_a_package_and_of_what_imports_it_are_chosen(package: str, some: set[str]) -> None:
    found = {name.removeprefix("tests/unit/plugins/") for name in mutants.tests_of(mutants.package_path(package))}
    assert some <= found
    assert "plugin_utils/_models/test_weights_report.py" not in found
    assert len(found) < 80


def test_the_weekly_job_and_the_record_name_the_packages_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    existing = {
        str(path.relative_to(ROOT / "plugins")) for path in ROOT.glob("plugins/*_utils/_*/") if any(path.glob("*.py"))
    }
    assert set(workflow["jobs"]["mutants"]["strategy"]["matrix"]["package"]) == existing
    assert set(json.loads((ROOT / mutants.RECORD).read_text())) <= existing


def test_each_mutant_that_is_accepted_as_equivalent_exists_and_has_a_reason() -> None:
    for package, reasons in yaml.safe_load(mutants.EQUIVALENT.read_text()).items():
        top = mutants.package_path(package)
        listed = mutants.accepted(top)
        files = {top if top.suffix else top / file for file, _line, _change in listed}
        texts = {line for _file, line, _change in listed}
        existing = {mutant.key for path in files for mutant in mutants.mutants(path, texts)}
        assert listed - existing == set(), package
        assert all(reasons), package


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a small checkout with one package, of which two faults are not noticed."""
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "plugins/module_utils/_small/__init__.py": "",
        "plugins/module_utils/_small/sums.py": (
            "LIMIT = 9\n\n\ndef more(a):\n    return a + 1\n\n\ndef big(a):\n    return a > LIMIT\n\n\n"
            "def unused(a):\n    return a\n"
        ),
        "tests/unit/plugins/module_utils/_small/test_small_sums.py": (
            "import sys\nsys.path.insert(0, 'plugins/module_utils')\nfrom _small import sums\n\n\n"
            "SEEN = sums.unused(3)\n\n\ndef test_seen():\n    assert SEEN == 3\n\n\n"
            "def test_more():\n    assert sums.more(1) == 2\n    assert sums.more(5) == 6\n"
        ),
        "tests/unit/plugins/modules/test_of_a_module.py": (
            "import sys\nsys.path.insert(0, '.')\nimport plugins.module_utils._small.sums as sums\n\n\n"
            "def test_big():\n    assert sums.big(20)\n    assert not sums.big(1)\n"
        ),
        "tests/mutants/mutants.py": Path(mutants.__file__).read_text(),
        "tests/mutants/faults.py": Path(faults.__file__).read_text(),
        "tests/mutants/equivalent.yml": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    person = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], [*person, "commit", "-q", "--allow-empty", "-m", "Start"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "tests/mutants/mutants.py"), "_small", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def contents(checkout: Path) -> dict[str, bytes]:
    """Return the content per path, without what git and Python write for themselves."""
    files = (path.relative_to(checkout) for path in checkout.rglob("*") if path.is_file())
    return {str(path): (checkout / path).read_bytes() for path in files if not {".git", "__pycache__"} & {*path.parts}}


def test_survivors_are_named_and_the_checkout_stays_as_it_was(checkout: Path) -> None:
    before = contents(checkout)
    done = run(checkout, "--least=90", "--files=s*.py")
    assert done.returncode == 1, done.stderr
    *survivors, total = done.stdout.splitlines()
    assert survivors == [
        "plugins/module_utils/_small/sums.py:1: LIMIT = 9",
        "    9 → 10",
        "plugins/module_utils/_small/sums.py:9: return a > LIMIT",
        "    a > LIMIT → a >= LIMIT",
    ]
    assert total.startswith("_small: 7 of 9 killed (78 %), seed 1")
    assert contents(checkout) == before


def test_a_process_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    assert mutants.run_apart(lambda: time.sleep(60) or 0, tmp_path, 0.5) is None
    assert mutants.run_apart(lambda: 3, tmp_path, 60) == 3


@pytest.mark.parametrize(
    ("source", "change", "lines", "function"),
    [
        ("A = 1", "1 → 2", {1}, ""),
        ("def f(a=1):\n    return a", "1 → 2", {1}, ""),
        ("def f():\n    if a and (\n        b\n    ):\n        c()", "a and b → a", {2, 3, 4}, "f"),
        ("class A:\n    def f(self):\n        def g():\n            b()", "b() → pass", {4}, "A.f"),
        ("def f():\n    match a:\n        case b if c < 1:\n            d()", "1 → 2", {2, 3}, "f"),
        ("def f():\n    try:\n        a()\n    except (B, C):\n        d()", "except (B, C): → except (C,):", {4}, "f"),
    ],
)
def test_the_tests_of_a_fault_are_those_that_execute_its_statement(
    source: str, change: str, lines: set[int], function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(source)
    (found,) = (mutant for mutant in mutants.mutants(Path("a.py")) if mutant.change == change)
    assert (found.lines, found.function) == (lines, function)
