"""Names that `import lmdeploy` offers, and its cost."""

import subprocess
import sys

import pytest


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, lmdeploy; lmdeploy.GenerationConfig; lmdeploy.ChatTemplateConfig\n"
        "print([m for m in ('torch', 'transformers', 'gradio', 'numpy', 'jinja2') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("module", ["lmdeploy.offline.pipeline", "lmdeploy.async_engine", "lmdeploy.serve.api"])
def test_public_functions_are_functions_whatever_was_imported_before(module: str) -> None:
    code = f"import {module}, lmdeploy\nprint(type(lmdeploy.pipeline).__name__, callable(lmdeploy.serve))"
    assert run_python(code) == "function True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import lmdeploy

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lmdeploy.nothing
