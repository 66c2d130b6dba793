"""Fields of a ModelSpec are declared once, with a rule, and checked by that."""

import dataclasses

import pytest

from lmdeploy.turbomind import spec
from lmdeploy.turbomind.spec import AttentionSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, RopeSpec, StretchSpec
from lmdeploy.turbomind.spec.fields import OneOf, fields_of

PARTS = [getattr(spec, name) for name in spec.__all__]
SOUND = ModelSpec(
    architecture="LlamaForCausalLM",
    model_name="model",
    dtype="float32",
    vocab_size=64,
    hidden_size=16,
    num_layers=2,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    norm=NormSpec(1e-5),
    attention=AttentionSpec(scale=0.5),
    max_position_embeddings=128,
    tied_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(1,),
)


@pytest.mark.parametrize("part", PARTS)
def test_texts_have_choices(part: type) -> None:
    for field in fields_of(part):
        if field.kind is str and field.name not in {"architecture", "model_name"}:
            assert isinstance(field.rule, OneOf), field.name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attention": AttentionSpec(scale=float("nan"))}, "attention.scale must be a finite number > 0, got nan"),
        ({"attention": AttentionSpec(1.0, windows=(4, -1))}, r"attention.windows\[1\] must be a whole number >= 0"),
        ({"attention": AttentionSpec(1.0, windows=(4,))}, "attention.windows must have a value for each of 2 layers"),
        ({"attention": AttentionSpec(1.0, softcap=-1.0)}, "attention.softcap must be a finite number >= 0, got -1"),
        ({"ropes": (RopeSpec(1e4, (1.0, -1.0)),)}, r"ropes\[0\].inv_freq\[1\] must be a finite number >= 0, got -1"),
        ({"ropes": (RopeSpec(1e4, (1.0,), axes=(3,)),)}, r"ropes\[0\].axes\[0\] must be at most 2, got 3"),
        (
            {"ropes": (RopeSpec(1e4, (1.0,), stretch=StretchSpec("twice", 8)),)},
            r"ropes\[0\].stretch.kind must be one of dynamic, qwen, long, got 'twice'",
        ),
        ({"moe": MoeSpec(4, 2, 8, layers=(True,))}, "moe.layers must have a value for each of 2 layers, got 1"),
        ({"vocab_size": True}, "vocab_size must be a whole number >= 1, got True"),
        ({"num_layers": 4097}, "num_layers must be at most 4096, got 4097"),
    ],
)
def test_a_value_outside_its_rule_is_refused_by_its_path(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(SOUND, **change)  # type: ignore[arg-type]


FOUR = dataclasses.replace(SOUND, num_layers=4, ropes=(RopeSpec(1e4, (1.0, 0.5, 0.1)),))
WIDE = AttentionSpec(0.5, num_heads=4, num_kv_heads=2, head_dim=16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layer_attentions": (0, 1, 0, 0)}, r"layer_attentions\[1\] must be at most 0, got 1"),
        (
            {"attentions": (dataclasses.replace(WIDE, num_kv_heads=3),), "layer_attentions": (0, 0, 1, 1)},
            "layer 2: num_heads must be a multiple of num_kv_heads 3, got 4",
        ),
        (
            {"attentions": (dataclasses.replace(WIDE, head_dim=4),), "layer_attentions": (0, 0, 0, 1)},
            "layer 3: rope must have 1 to head_dim / 2 = 2 inv_freq, got 3",
        ),
        ({"mlp": MlpSpec(sizes=(8, 8))}, "mlp.sizes must have a value for each of 4 layers, got 2"),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_their_number(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(FOUR, **change)  # type: ignore[arg-type]


def test_layers_have_the_sizes_of_their_kind() -> None:
    spec = dataclasses.replace(
        FOUR,
        attentions=(WIDE,),
        layer_attentions=(0, 1, 0, 1),
        layer_keys=(-1, -1, -1, 1),
        mlp=MlpSpec(sizes=(8, 8, 4, 4)),
    )
    assert ModelSpec.from_json(spec.to_json()) == spec
    sizes = [
        (attention.num_heads, attention.num_kv_heads, attention.head_dim)
        for attention in map(spec.attention_of, range(4))
    ]
    assert sizes == [(2, 1, 8), (4, 2, 16)] * 2
    assert [spec.keys_of(layer) for layer in range(4)] == [-1, -1, -1, 1]
    assert [spec.mlp_size(layer) for layer in range(4)] == [8, 8, 4, 4]


def test_every_problem_is_named() -> None:
    with pytest.raises(ValueError, match=r"vocab_size .*; attention\.scale "):
        dataclasses.replace(SOUND, vocab_size=0, attention=AttentionSpec(0.0))
