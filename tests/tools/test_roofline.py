"""Steps under the machine's roof: what they compute for a byte, and what memory or arithmetic allows them."""

from pathlib import Path

import pytest

from tools.bench.matches import Match
from tools.bench.roofline import Limits, ModelCost
from tools.bench.roofline_plot import Point, draw, point
from tools.bench.step_shares import NAMES, shares

LIMITS = Limits(bandwidth=100.0, float32=500.0, int8=2000.0)
COST = ModelCost(weight_bytes=1000, cache_bytes=10, operations=4000)


def test_streams_share_the_weights_and_read_their_own_caches() -> None:
    found = point(Match("streams", 4, 8, 64, 64), COST, 5.0)
    assert found.intensity == pytest.approx(4000 * 8 / (1000 + 8 * 10 * (64 + 32)))
    assert found.rate == 20000.0


def test_a_prompts_step_reads_the_weights_once_for_its_rows() -> None:
    assert point(Match("prefill", 8, 1, 512, 1), COST, 1.0).intensity == pytest.approx(4000 * 256 / (1000 + 10 * 256))
    assert point(Match("prefill", 8, 1, 100, 1), COST, 1.0).intensity == pytest.approx(4000 * 100 / (1000 + 10 * 50))


@pytest.mark.parametrize(("bits", "intensity", "roof"), [(4, 2.0, 200.0), (4, 50.0, 2000.0), (16, 50.0, 500.0)])
def test_the_roof_is_memorys_or_that_of_the_arithmetic(bits: int, intensity: float, roof: float) -> None:
    assert Point("a step", bits, intensity, 1.0).roof(LIMITS) == roof


def test_the_image_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "roof.png"
    draw(path, [Point("prefill of 512, 4-bit", 4, 30.0, 900.0), Point("1 stream", 16, 1.0, 50.0)], LIMITS, "a machine")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_samples_are_added_up_by_operator() -> None:
    report = """
    40.00%  [.] turbomind::avx512bf16::packed_rows<8, 4>(turbomind::LinearWeight const&, int)
    10.00%  [.] turbomind::avx512bf16::dot_tile<6, turbomind::avx512bf16::PairProducts>
     5.00%  [.] turbomind::avx512bf16::quantize_row
    20.00%  [.] turbomind::avx512bf16::attend_tile<6, turbomind::bf16>
    15.00%  [.] turbomind::ThreadPool::work
     4.00%  [.] turbomind::StepLoop::begin
     6.00%  [.] _PyEval_EvalFrameDefault
    """
    found = shares(report.splitlines())
    assert list(found) == list(NAMES)
    assert found["linear layers"] == pytest.approx(0.5)
    assert found["rounding of activations"] == pytest.approx(0.05)
    assert found["attention"] == pytest.approx(0.2)
    assert found["waiting for the other threads"] == pytest.approx(0.15)
    assert found["the rest of the engine"] == pytest.approx(0.04)
    assert sum(found.values()) == pytest.approx(1)
