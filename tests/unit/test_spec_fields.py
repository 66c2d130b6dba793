"""Fields of a ModelSpec are declared once, with a rule and a sentence, and checked by that."""

import dataclasses

import pytest

from lmdeploy.turbomind import spec
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, MoeSpec, NormSpec, RopeSpec, StretchSpec
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
def test_every_field_has_a_sentence_and_texts_have_choices(part: type) -> None:
    for field in fields_of(part):
        assert field.sentence.endswith("."), field.name
        if field.kind is str and field.name not in {"architecture", "model_name"}:
            assert isinstance(field.rule, OneOf), field.name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attention": AttentionSpec(scale=float("nan"))}, "attention.scale must be a finite number > 0, got nan"),
        ({"attention": AttentionSpec(1.0, windows=(4, -1))}, r"attention.windows\[1\] must be a whole number >= 0"),
        ({"attention": AttentionSpec(1.0, windows=(4,))}, "attention.windows must have a value for each of 2 layers"),
        ({"attention": AttentionSpec(1.0, softcap=-1.0)}, "attention.softcap must be a finite number >= 0, got -1"),
        ({"ropes": (RopeSpec(1e4, (1.0, 0.0)),)}, r"ropes\[0\].inv_freq\[1\] must be a finite number > 0, got 0"),
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


def test_every_problem_is_named() -> None:
    with pytest.raises(ValueError, match=r"vocab_size .*; attention\.scale "):
        dataclasses.replace(SOUND, vocab_size=0, attention=AttentionSpec(0.0))
