"""The walls of the house: who may import whom, how large things get, and where state may live.

Each import contract in `pyproject.toml` is also shown to bite: a copy of the package with one wrong import
must break that contract and no other.
"""

import ast
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import FunctionType, GenericAlias, MappingProxyType, ModuleType, UnionType
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "agentsched"
CORE = ("model", "policy", "predict", "engine")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

CONTRACTS: dict[str, Any] = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}


# -- imports -----------------------------------------------------------------------------------------------


def lint(root: Path) -> tuple[dict[str, str], str]:
    """Run import-linter on the package below `root`; return its verdict per contract, and what it said."""
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
            "--no-logo",
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = run.stdout + run.stderr
    verdicts: dict[str, str] = {}
    for name, contract in CONTRACTS.items():
        found = re.search(rf"^{re.escape(contract['name'])} (KEPT|BROKEN)", said, re.MULTILINE)
        verdicts[name] = found[1] if found else "not checked"
    assert (run.returncode == 0) == (set(verdicts.values()) == {"KEPT"}), said
    return verdicts, said


def copied(to: Path) -> Path:
    shutil.copytree(PACKAGE, to / "src" / "agentsched", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to / "src" / "agentsched"


def test_the_contracts_are_kept() -> None:
    verdicts, said = lint(ROOT)
    assert set(verdicts.values()) == {"KEPT"}, said


def test_a_copy_keeps_them_too(tmp_path: Path) -> None:
    """Else what follows would prove nothing."""
    copied(tmp_path)
    assert set(lint(tmp_path)[0].values()) == {"KEPT"}


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [
        ("floors", "errors.py", "import agentsched.model.query"),
        ("floors", "dist.py", "import agentsched.errors"),
        ("floors", "model/query.py", "import agentsched.policy.rank"),
        ("floors", "policy/rank.py", "import agentsched.predict.speed"),
        ("floors", "predict/speed.py", "import agentsched.policy.rank"),
        ("floors", "predict/speed.py", "import agentsched.engine.window"),
        ("floors", "runtime/spool.py", "import agentsched.sim.kv"),
        ("floors", "sim/kv.py", "import agentsched.runtime"),
        ("floors", "runtime/spool.py", "import agentsched.testing.clock"),
        ("floors", "new_room.py", "ROOM = 1"),
        ("wire-and-engine", "transport/sse.py", "import agentsched.engine.window"),
        ("no-frameworks", "runtime/scope.py", "import langgraph.graph"),
        ("pytest-in-the-plugin-only", "testing/clock.py", "import pytest"),
    ],
)
def test_a_contract_bites(tmp_path: Path, contract: str, file: str, line: str) -> None:
    package = copied(tmp_path)
    with (package / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    verdicts, said = lint(tmp_path)
    broken = [name for name, verdict in verdicts.items() if verdict != "KEPT"]
    if file != "new_room.py":
        assert broken == [contract], said
    else:
        assert "new_room" in said
        assert broken


@pytest.mark.parametrize("contract", ["pure", "no-frameworks"])
def test_each_forbidden_module_is_seen(tmp_path: Path, contract: str) -> None:
    package = copied(tmp_path)
    forbidden = CONTRACTS[contract]["forbidden_modules"]
    with (package / "engine" / "window.py").open("a", encoding="utf-8") as source:
        source.writelines(f"import {name}\n" for name in forbidden)
    verdicts, said = lint(tmp_path)
    assert [name for name, verdict in verdicts.items() if verdict != "KEPT"] == [contract]
    for name in forbidden:
        assert f"agentsched.engine.window -> {name} " in said


def test_each_pure_floor_is_watched(tmp_path: Path) -> None:
    package = copied(tmp_path)
    floors = [name.removeprefix("agentsched.") for name in CONTRACTS["pure"]["source_modules"]]
    assert set(floors) == {*CORE, "dist", "sim"}
    for floor in floors:
        file = package / floor / "__init__.py" if (package / floor).is_dir() else package / f"{floor}.py"
        with file.open("a", encoding="utf-8") as source:
            source.write("\nimport random\n")
    verdicts, said = lint(tmp_path)
    assert [name for name, verdict in verdicts.items() if verdict != "KEPT"] == ["pure"]
    for floor in floors:
        assert f"agentsched.{floor} -> random " in said


# -- sizes -------------------------------------------------------------------------------------------------


@cache
def sources() -> dict[str, str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}


def test_no_file_hides_a_noun() -> None:
    long = {name: n for name, text in sources().items() if (n := len(text.splitlines())) > MAX_FILE_LINES}
    assert long == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long: dict[str, int] = {}
    for file, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{file}:{node.lineno} {node.name}"] = lines
    assert long == {}


def test_each_module_says_what_it_is_for() -> None:
    assert [file for file, text in sources().items() if not ast.get_docstring(ast.parse(text))] == []


# -- state -------------------------------------------------------------------------------------------------

CONSTANTS = (int, float, str, bytes, bool, type(None), Enum, MappingProxyType)
DEFINITIONS = (type, FunctionType, ModuleType, TypeVar, GenericAlias, UnionType)


def core_modules() -> Iterator[ModuleType]:
    yield importlib.import_module("agentsched.dist")
    for floor in CORE:
        package = importlib.import_module(f"agentsched.{floor}")
        yield package
        for found in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"agentsched.{floor}.{found.name}")


def is_constant(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_constant, value))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, (*CONSTANTS, *DEFINITIONS)) or type(value).__module__ == "typing":
        return True
    return callable(value) and not str(getattr(value, "__module__", PACKAGE.name)).startswith(PACKAGE.name)


def test_what_counts_as_state() -> None:
    for state in ([], {}, set(), [1], (1, []), bytearray(), object(), iter(())):  # pyright: ignore[reportUnknownVariableType]
        assert not is_constant(state)
    for constant in (1, "x", (1, "x"), frozenset({1}), MappingProxyType({}), int | None, tuple[int, ...]):  # pyright: ignore[reportUnknownVariableType]
        assert is_constant(constant)


def test_core_modules_hold_no_state() -> None:
    state = [
        f"{module.__name__}.{name}"
        for module in core_modules()
        for name, value in vars(module).items()
        if not name.startswith("__") and not is_constant(value)
    ]
    assert state == []


def test_core_classes_hold_no_state() -> None:
    """A mutable value in a class body is shared by all its objects."""
    state = [
        f"{module.__name__}.{kind.__name__}.{name}"
        for module in core_modules()
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
        for name, value in vars(kind).items()
        if not name.startswith("_") and isinstance(value, (list, dict, set, bytearray))
    ]
    assert state == []


# -- order -------------------------------------------------------------------------------------------------

READERS = ("iter", "next", "list", "tuple", "enumerate", "map", "filter", "zip", "reversed")


def set_names(tree: ast.AST) -> set[str]:
    """Return the names and attributes that a module declares to be sets."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and says_set(node.annotation):
            names.add(ast.unparse(node.target))
        if isinstance(node, ast.Assign) and is_set(node.value, set()):
            names.update(map(ast.unparse, node.targets))
        if isinstance(node, ast.arg) and says_set(node.annotation):
            names.add(node.arg)
    return names


def says_set(annotation: ast.expr | None) -> bool:
    return annotation is not None and bool(re.match(r"(Frozen|frozen)?[Ss]et\b", ast.unparse(annotation)))


def is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
        return is_set(node.left, names) or is_set(node.right, names)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("set", "frozenset")
    return ast.unparse(node) in names


def set_iterations(source: str) -> list[int]:
    """Return the lines on which a set is walked through in whatever order it has."""
    tree = ast.parse(source)
    names = set_names(tree)
    lines: list[int] = []
    for node in ast.walk(tree):
        walked: list[ast.expr] = []
        if isinstance(node, (ast.For, ast.comprehension)):
            walked.append(node.iter)
        elif isinstance(node, (ast.YieldFrom, ast.Starred)):
            walked.append(node.value)
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) in READERS:
                walked += node.args
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
                walked.append(node.func.value)
        lines += [one.lineno for one in walked if is_set(one, names)]
    return lines


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "a: set[int] = set()\nfor x in a: pass",
        "self.a: set[int] = set()\nb = [x for x in self.a]",
        "a = frozenset(b)\nc = list(a)",
        "def f(a: set[int]): return next(iter(a))",
        "def f(a: set[int]): return a.pop()",
        "a = {1}\nb = (*a,)",
        "a = {1}\nb = tuple(a - c)",
        "a = {1}\nb = {x: 1 for x in a | c}",
    ],
)
def test_walking_through_a_set_is_seen(source: str) -> None:
    assert set_iterations(source)


@pytest.mark.parametrize(
    "source",
    [
        "a = {1}\nb = sorted(a)",
        "a: set[int] = set()\nb = 1 in a",
        "a: dict[int, int] = {}\nfor x in a: pass",
        "a = {1}\nfor x in sorted(a): pass",
        "a = [x for x in b if x not in {1}]",
        "a = {1}\na.discard(x)\nlen(a)",
    ],
)
def test_asking_and_sorting_a_set_is_fine(source: str) -> None:
    assert set_iterations(source) == []


@pytest.mark.parametrize("floor", CORE)
def test_no_decision_walks_through_a_set(floor: str) -> None:
    found = {
        file: lines
        for file, text in sources().items()
        if file.startswith(f"{floor}{os.sep}") and (lines := set_iterations(text))
    }
    assert found == {}
