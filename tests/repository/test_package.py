"""What the wheel asks for: ranges that hold what is tested, and everything that the code imports."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lmdeploy import extras
from tools.lock_requirements import requirements_of

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = ("lmdeploy", "openai_gateway", "python_backend", "webui")
USERS = sorted(set(PROJECT["optional-dependencies"]) - {"build", "dev", "all"})
# Imported where they are: Triton's module for its Python models, and evaluation harnesses.
ELSEWHERE = {"lm_eval", "opencompass", "triton_python_backend_utils"}
# Found by the first module that brings it.
DISTRIBUTIONS = metadata.packages_distributions()


def direct(extra: str) -> list[Requirement]:
    return [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]


def others(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements} - {"lmdeploy"}


def imported(folder: str) -> Iterator[tuple[str, str]]:
    """Yield (file, module) of what is imported from elsewhere at run time, lazily or not."""
    for file in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        only_typed = {
            id(node)
            for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
            for node in ast.walk(branch)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                root = name.partition(".")[0]
                if id(node) not in only_typed and root not in sys.stdlib_module_names and root not in OWN:
                    yield str(file.relative_to(ROOT)), root


@pytest.mark.parametrize("extra", ["", *USERS])
def test_what_users_install_is_bounded_on_both_sides_and_pinned_to_nothing(extra: str) -> None:
    texts = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    for requirement in map(Requirement, texts):
        if requirement.name == PROJECT["name"]:
            continue
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement}: expected a lowest release and the first that is too new"


def test_every_pinned_release_is_one_that_the_wheel_allows() -> None:
    pins = {}
    for name in ("torch", "runtime", "no-deps", "dev"):
        for line in (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if "==" in line and not line.startswith("#"):
                package, _, version = line.partition("==")
                pins[canonicalize_name(package)] = version
    asked = [Requirement(text) for text in requirements_of(PROJECT, USERS)]
    held = [requirement for requirement in asked if canonicalize_name(requirement.name) in pins]
    assert len(held) > 25
    for requirement in held:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_every_import_is_of_a_package_that_the_wheel_asks_for() -> None:
    asked = others(requirements_of(PROJECT, USERS))
    unknown = {
        (file, module)
        for folder in OWN
        for file, module in imported(folder)
        if module not in ELSEWHERE and not asked & {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, [])}
    }
    assert not unknown


@pytest.mark.parametrize("extra", USERS)
def test_a_missing_extra_is_recognized_by_modules_of_its_own_packages(extra: str) -> None:
    included = {name for requirement in direct(extra) if requirement.name == "lmdeploy" for name in requirement.extras}
    assert included == set(extras.INCLUDED.get(extra, ()))
    own = {canonicalize_name(requirement.name) for requirement in direct(extra)}
    base = others(PROJECT["dependencies"])
    for module in extras.MODULES[extra]:
        brought_by = {canonicalize_name(name) for name in DISTRIBUTIONS.get(module.partition(".")[0], [module])}
        assert brought_by & own, f"{module} is of {brought_by}, which {extra} does not name"
        assert not brought_by & base, f"{module} is there without {extra}"


def test_everything_is_in_all() -> None:
    (everything,) = direct("all")
    assert everything.extras == set(USERS)


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert named == {f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in allowed}


def test_a_missing_extra_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "webui", ("no_such_page", "no.such.module"))
    monkeypatch.setitem(extras.MODULES, "vision", ("no_such_pictures",))
    with pytest.raises(extras.MissingExtraError) as told:
        extras.require("webui", "--webui")
    assert str(told.value) == (
        "--webui needs packages that are not installed (no_such_page, no.such.module, no_such_pictures); "
        "run: pip install 'lmdeploy[webui]'"
    )
