"""Which kernels serve an operator on a GPU: the engine's table, what the environment may say, and what is shown."""

import re
from pathlib import Path

import pytest

from lmdeploy import _turbomind
from lmdeploy.cli.check_env import collect

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "cuda.md"
OPERATORS = {(operator["engine"], operator["name"]): operator for operator in _turbomind.kernel_operators()}


def test_the_page_shows_the_engines_table() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Order of trust")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([\w, ]+?) \| (.*?) ?\|$", section, re.MULTILINE)
    shown = {(engine, name): (order.split(", "), checked) for engine, name, order, checked in rows}
    assert shown == {key: (operator["order"], operator["checked"]) for key, operator in OPERATORS.items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {}),
        (
            "own",
            {
                **{(engine, name): "own" for engine, name in OPERATORS if engine == "turbomind"},
                ("pytorch", "attention"): "own",
                ("pytorch", "codes"): "own",
            },
        ),
        ("torch", {("pytorch", name): "torch" for name in ("attention", "codes", "sampling", "graphs")}),
        ("graphs=off", {("turbomind", "graphs"): "off", ("pytorch", "graphs"): "off"}),
        ("sampling=torch,sampling=off", {("turbomind", "sampling"): "off", ("pytorch", "sampling"): "off"}),
        ("linear=own,peers=library", {("turbomind", "linear"): "own", ("turbomind", "peers"): "library"}),
        (
            "library,latents=own",
            {("pytorch", "attention"): "library"}
            | {
                ("turbomind", name): "own" if name == "latents" else "library"
                for name in ("linear", "scales", "experts", "prompts", "latents", "peers")
            },
        ),
    ],
)
def test_the_environment_names_kernels(
    value: str, expected: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", value)
    overrides = {key: _turbomind.requested_kernels(*key) for key in OPERATORS}
    assert {key: kernels for key, kernels in overrides.items() if kernels is not None} == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cublas", "cublas is not library, own or torch"),
        ("off", "off is not library, own or torch"),
        ("own,,", " is not library, own or torch"),
        ("linear=fast", "fast is not library, own or torch, nor off"),
        ("lineer=own", "there is no operator lineer"),
        ("prompts=torch", "prompts can be library, own, not torch"),
    ],
)
def test_a_value_that_says_nothing_is_refused(value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", value)
    with pytest.raises(ValueError, match=f"^LMDEPLOY_CUDA_KERNELS is {value}: {reason}"):
        _turbomind.requested_kernels("turbomind", "graphs")
    assert collect()["GPU kernels"] == f"LMDEPLOY_CUDA_KERNELS is {value}: {reason}"


def test_check_env_shows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "scales=own")
    report = collect()
    lines = {key: report[f"GPU kernels, {key[0]} {key[1]}"] for key in OPERATORS}
    order = "library, else own (compared with our kernel at start)"
    assert lines["turbomind", "latents"] == order
    assert lines["turbomind", "scales"] == f"own, as LMDEPLOY_CUDA_KERNELS says; otherwise {order}"
