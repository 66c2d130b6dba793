"""Requirements of the wheel: ranges that hold the tested versions, and everything that the code imports."""

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lmdeploy import distribution, extras
from lmdeploy.cli import check_env
from tools.lock_requirements import requirements_of

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("lmdeploy", "openai_gateway", "python_backend", "webui")
USERS = sorted(set(PROJECT["optional-dependencies"]) - {"build", "dev", "all"})
# Imported where they are: Triton's module for its Python models, and evaluation harnesses.
ELSEWHERE = {"lm_eval", "opencompass", "triton_python_backend_utils"}
# Found by the first module that brings it.
DISTRIBUTIONS = metadata.packages_distributions()


def direct(extra: str) -> list[Requirement]:
    return [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]


def others(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements} - {PROJECT["name"]}


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
                if id(node) not in only_typed and root not in sys.stdlib_module_names and root not in PACKAGES:
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
    requested = [Requirement(text) for text in requirements_of(PROJECT, USERS)]
    pinned = [requirement for requirement in requested if canonicalize_name(requirement.name) in pins]
    assert len(pinned) > 25
    for requirement in pinned:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_every_import_is_of_a_package_that_the_wheel_asks_for() -> None:
    requested = others(requirements_of(PROJECT, USERS))
    unknown = {
        (file, module)
        for folder in PACKAGES
        for file, module in imported(folder)
        if module not in ELSEWHERE
        and not requested & {canonicalize_name(name) for name in DISTRIBUTIONS.get(module, [])}
    }
    assert not unknown


@pytest.mark.parametrize("extra", USERS)
def test_a_missing_extra_is_recognized_by_modules_of_its_own_packages(extra: str) -> None:
    included = {
        name for requirement in direct(extra) if requirement.name == PROJECT["name"] for name in requirement.extras
    }
    assert included == set(extras.INCLUDED.get(extra, ()))
    extra_names = {canonicalize_name(requirement.name) for requirement in direct(extra)}
    base = others(PROJECT["dependencies"])
    for module in extras.MODULES[extra]:
        brought_by = {canonicalize_name(name) for name in DISTRIBUTIONS.get(module.partition(".")[0], [module])}
        assert brought_by & extra_names, f"{module} is of {brought_by}, which {extra} does not name"
        assert not brought_by & base, f"{module} is there without {extra}"


def test_everything_is_in_all() -> None:
    (everything,) = direct("all")
    assert everything.extras == set(USERS)


def test_the_pythons_that_are_named_are_those_that_are_allowed() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text}
    assert named == {f"3.{minor}" for minor in range(30) if f"3.{minor}.1" in allowed}


def test_a_missing_extra_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "webui", ("no_such_page", "no.such.module"))
    monkeypatch.setitem(extras.MODULES, "vision", ("no_such_images",))
    with pytest.raises(extras.MissingExtraError) as reported:
        extras.require("webui", "--webui")
    assert str(reported.value) == (
        "--webui needs packages that are not installed (no_such_page, no.such.module, no_such_images); "
        f"run: make -C {ROOT} setup"
    )


def wheel_in(folder: Path, distribution: str) -> None:
    """Write what `pip install` leaves of a distribution with a package lmdeploy."""
    (folder / "lmdeploy").mkdir(parents=True, exist_ok=True)
    name, _, version = distribution.rpartition("-")
    info = folder / f"{distribution}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == distribution.NAME != distribution.UPSTREAM
    assert PROJECT["scripts"] == {"lmdeploy": "lmdeploy.cli.main:main"}


def test_a_wheel_asks_pip_for_an_extra_and_a_checkout_asks_make(tmp_path: Path) -> None:
    assert distribution.install_command("ray", tmp_path) == "pip install 'lmdeploy-triton[ray]'"
    targets = {extra: distribution.install_command(extra, ROOT).removeprefix(f"make -C {ROOT} ") for extra in USERS}
    assert targets.pop("lite") == "pip install datasets"
    pinned = {"setup": ("torch", "runtime", "no-deps"), "dev": ("torch", "runtime", "no-deps", "dev")}
    for extra, target in targets.items():
        files = [ROOT / "requirements" / f"{name}.txt" for name in pinned[target]]
        installed = {
            canonicalize_name(line.partition("==")[0]) for file in files for line in file.open() if "==" in line
        }
        assert {canonicalize_name(requirement.name) for requirement in direct(extra)} - {distribution.NAME} <= installed


def test_two_distributions_in_one_folder_are_refused_at_import(tmp_path: Path) -> None:
    wheel_in(tmp_path, "lmdeploy_triton-0.2.0")
    distribution.require_unmixed(tmp_path)
    wheel_in(tmp_path, "lmdeploy-0.6.5")
    for name in ("__init__.py", "distribution.py"):
        shutil.copy(ROOT / "lmdeploy" / name, tmp_path / "lmdeploy")
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import lmdeploy"]
    done = subprocess.run(command, capture_output=True, text=True)
    line = done.stderr.splitlines()[-1]
    assert "holds the distributions lmdeploy-0.6.5 and lmdeploy-triton" in line
    assert "pip uninstall lmdeploy lmdeploy-triton" in line


def test_upstreams_distribution_elsewhere_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("upstream" in name for name in check_env.collect())
    wheel_in(tmp_path, "lmdeploy-0.6.5")
    monkeypatch.syspath_prepend(tmp_path)
    assert check_env.collect()["upstream's distribution lmdeploy"].startswith(f"0.6.5 in {tmp_path};")
