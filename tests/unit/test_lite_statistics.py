"""Statistics of layers in `lmdeploy lite`, and rounding that makes up for its errors."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy.lite.auto_gptq import round_compensated
from lmdeploy.lite.calibrate import INPUTS, OUTPUTS, CalibrationSettings, calibrate
from lmdeploy.lite.calibration import built_in_text, load_text, samples_of
from lmdeploy.lite.rounding import Grid, round_matrix
from lmdeploy.tokenizer import Tokenizer
from tests.support.tiny_models import make_tiny

SETTINGS = CalibrationSettings(calib_samples=3, calib_seqlen=40)


def test_statistics_are_those_of_transformers_and_an_interrupted_run_continues(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "model", "Qwen2ForCausalLM")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(source, tmp_path / "made", SETTINGS, progress=interrupt)
    with pytest.raises(FileExistsError, match="differs in calib_samples, text"):
        calibrate(source, tmp_path / "made", CalibrationSettings(calib_samples=2, calib_seqlen=40))
    calibrate(source, tmp_path / "made", SETTINGS)
    inputs, outputs = (torch.load(tmp_path / "made" / name, weights_only=True) for name in (INPUTS, OUTPUTS))

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            seen[name] = []
            module.register_forward_hook(
                lambda _, args, output, name=name: seen[name].append((args[0].flatten(0, -2), output.flatten(0, -2)))
            )
    with torch.no_grad():
        for piece in samples_of(load_text(None), Tokenizer(str(source)), 3, 40):
            model(torch.tensor([piece]))
    assert inputs["max"].keys() == outputs["max"].keys() == seen.keys()
    for name, calls in seen.items():
        for stored, rows in zip((inputs, outputs), map(torch.cat, zip(*calls, strict=True)), strict=True):
            torch.testing.assert_close(stored["max"][name], rows.amax(0), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(stored["min"][name], rows.amin(0), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(stored["absmean"][name], rows.abs().mean(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("by_importance", [False, True])
@pytest.mark.parametrize("group", [24, 32, 192])
def test_errors_that_are_made_up_for_change_outputs_less_than_rounding_to_nearest(
    group: int, by_importance: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 192)
    x = torch.randn(2000, 40) @ torch.randn(40, 192) + 0.3 * torch.randn(2000, 192)
    grid = Grid(4, group, is_symmetric=True)
    made = round_compensated(weight, x.T @ x / len(x), grid, by_importance=by_importance)
    quantized, zeros, scales = made.rounded.codes, made.rounded.zeros, made.rounded.scales
    values = (quantized - zeros[:, made.groups]) * scales.float()[:, made.groups]
    native, nearest = (
        (x @ (found - weight).T).square().mean() for found in (values, round_matrix(weight, grid).numbers())
    )
    assert native < 0.5 * nearest


def test_the_text_that_comes_along_is_long_enough_for_the_default_pieces() -> None:
    assert len(built_in_text()) > 2_500_000  # no usual tokenizer needs 9 characters a token
