"""What `import lmdeploy` offers, and what it costs."""

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


def test_a_public_function_wins_over_the_module_of_its_name() -> None:
    code = "import lmdeploy.pipeline\nfrom lmdeploy import pipeline\nprint(type(pipeline), type(lmdeploy.pipeline))"
    assert run_python(code) == "<class 'function'> <class 'function'>"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import lmdeploy

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lmdeploy.nothing
