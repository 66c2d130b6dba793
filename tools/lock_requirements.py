"""Write ``requirements/runtime.txt`` and ``requirements/dev.txt`` from what is installed.

Reads the direct dependencies in ``pyproject.toml``, follows them through the metadata of the packages installed next to
the running interpreter, and pins every package reached. Run it (``make lock``) after trying new versions in the virtual
environment.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
# Pinned in requirements/torch.txt and requirements/no-deps.txt, the latter without what they depend on.
SEPARATE = {"torch", "apache-tvm-ffi", "xgrammar"}
ALONE = {"xgrammar"}
# Extras that a checkout has without its tests.
RUNTIME = ("serve", "webui", "vision", "build")


def requirements_of(project: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """Return the requirements of ``[project]`` and some of its extras, also of extras that these include."""
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                found += requirements_of(project, sorted(requirement.extras))
            else:
                found.append(text)
    return list(dict.fromkeys(found))


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Return the version of every installed package that requirements reach, by canonical name.

    Raises `importlib.metadata.PackageNotFoundError` if a required package is not installed.
    """
    pins: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(text), "") for text in requirements]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        pins[name] = distribution.version
        for extra_name in ("", *sorted(requirement.extras)):
            if (name, extra_name) in seen:
                continue
            seen.add((name, extra_name))
            if name in ALONE:
                continue
            queue.extend((Requirement(text), extra_name) for text in distribution.requires or [])
    return {name: version for name, version in pins.items() if name not in SEPARATE}


def write(path: Path, title: str, pins: dict[str, str]) -> None:
    """Write one pinned requirements file."""
    lines = [f"# {title} Written by `make lock`.", *(f"{name}=={version}" for name, version in sorted(pins.items()))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(pins)} packages")


def main() -> None:
    """Write both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtime = closure(requirements_of(project, RUNTIME))
    dev = closure(requirements_of(project, ["dev"]))
    write(ROOT / "requirements" / "runtime.txt", "What building and serving needs, torch apart.", runtime)
    dev_only = {name: version for name, version in dev.items() if name not in runtime}
    write(ROOT / "requirements" / "dev.txt", "What tests and checks need alongside runtime.txt.", dev_only)


if __name__ == "__main__":
    main()
