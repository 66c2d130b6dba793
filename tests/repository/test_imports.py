"""Imports only point down, in both languages, and never in a circle."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# ---- C++ ----

SOURCES = ROOT / "backend_cpp"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# From the ground up; of one line, none includes another.
CPP_FLOORS = (
    {"base"},
    {"kernels"},
    {"device"},
    {"weights"},
    {"model"},
    {"engine"},
    {"grammar", "python", "triton"},
    {"testing"},
    {"tests"},
    {"fuzz"},
)

# ---- Python ----

# From the ground up, by the longest name that a module begins with; of one line, none imports another.
PYTHON_FLOORS = (
    {"lmdeploy"},
    {"openai_gateway", "python_backend"},
    {"webui"},
    {"lmdeploy.serve.ray"},
    {"lmdeploy.cli"},
    {"lmdeploy.__main__", "tools"},
    {"tests"},
)


def floor_of(name: str, floors: Iterable[set[str]]) -> tuple[int, str]:
    """Return the number of the floor that ``name`` is on, and the part of the floor."""
    found = [
        (len(part), number, part)
        for number, floor in enumerate(floors)
        for part in floor
        if name == part or name.startswith((f"{part}.", f"{part}/"))
    ]
    assert found, f"{name} is on no floor: name it in {Path(__file__).name}"
    _, number, part = max(found)
    return number, part


def upward(graph: Mapping[str, set[str]], floors: Iterable[set[str]]) -> list[str]:
    """Return the modules that import from above, or from alongside."""
    wrong = []
    for name, imported in graph.items():
        number, part = floor_of(name, floors)
        for other in imported:
            other_number, other_part = floor_of(other, floors)
            if other_number > number or (other_number == number and other_part != part):
                wrong.append(f"{name} -> {other}")
    return sorted(wrong)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the names along a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@cache
def includes() -> dict[str, set[str]]:
    """Return the files of ``backend_cpp`` that each of them includes."""
    files = [path for suffix in ("h", "cc", "cu", "cuh") for path in SOURCES.rglob(f"*.{suffix}")]
    sources = {path.relative_to(SOURCES).as_posix(): path for path in files}
    return {
        name: set(INCLUDE.findall(path.read_text(encoding="utf-8"))) & sources.keys() for name, path in sources.items()
    }


@cache
def imports(*, is_running: bool) -> dict[str, set[str]]:
    """Return the modules of this repository that each of them imports, inside functions too.

    ``is_running`` leaves out what is imported for types alone.
    """
    packages = sorted({name.split(".")[0] for floor in PYTHON_FLOORS for name in floor})
    files = [path for package in packages for suffix in ("py", "pyi") for path in (ROOT / package).rglob(f"*.{suffix}")]
    sources = {module_of(path): path for path in files}
    result = {}
    for name, path in sources.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if is_running:
            tree = WithoutTypes().visit(tree)
        result[name] = set(imported_by(tree, sources.keys())) - {name}
    return result


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what is after ``if TYPE_CHECKING``."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if is_for_types else self.generic_visit(node)


def imported_by(tree: ast.AST, known: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the package"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:  # a module, or something in one
            yield from [found for found in (name, name.rpartition(".")[0]) if found in known][:1]


def folders(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph of the folders that files are in, without what a folder and those inside of it include."""
    result: dict[str, set[str]] = {}
    for name, included in graph.items():
        folder = name.rpartition("/")[0]
        others = {other.rpartition("/")[0] for other in included}
        is_inside = {
            other for other in others if f"{folder}/".startswith(f"{other}/") or other.startswith(f"{folder}/")
        }
        result.setdefault(folder, set()).update(others - is_inside)
    return result


def test_headers_of_upper_floors_are_not_included_below() -> None:
    assert len(includes()) > 150
    assert upward(includes(), CPP_FLOORS) == []


def test_neither_headers_nor_folders_of_the_engine_include_each_other_in_a_circle() -> None:
    assert circle(includes()) == []
    assert circle(folders(includes())) == []


def test_nothing_above_the_devices_asks_for_the_name_of_one() -> None:
    folders = [floor for floors in CPP_FLOORS[3:7] for floor in floors]
    files = [path for folder in folders for path in (SOURCES / folder).rglob("*.[hc]*")]
    naming = [path for path in files if re.search(r'"(cpu|cuda)"', path.read_text(encoding="utf-8"))]
    assert len(files) > 100
    assert not naming


def test_modules_of_upper_floors_are_not_imported_below_and_the_command_line_by_nobody() -> None:
    graph = imports(is_running=False)
    assert len(graph) > 200
    assert upward(graph, PYTHON_FLOORS) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert circle(imports(is_running=True)) == []


def test_what_points_up_or_sideways_is_found() -> None:
    floors = ({"a"}, {"b", "c"}, {"a.top"})
    graph = {"a.x": {"a.y", "b", "a.top.z"}, "b": {"a.x", "c"}, "a.top.z": {"a", "b"}}
    assert upward(graph, floors) == ["a.x -> a.top.z", "a.x -> b", "b -> c"]
