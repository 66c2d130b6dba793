"""Model description, ``ModelSpec``. Its fields are declared here once, for Python and C++ (``make fields``)."""

from lmdeploy.turbomind.spec.model import ModelSpec
from lmdeploy.turbomind.spec.parts import (
    AttentionSpec,
    BlockSpec,
    EncoderSpec,
    HeadSpec,
    ImagesSpec,
    IndexerSpec,
    LayerInputSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    OutputSpec,
    RecurrenceSpec,
    RopeSpec,
    RouterSpec,
    StreamsSpec,
    StretchSpec,
)

__all__ = [
    "AttentionSpec",
    "BlockSpec",
    "EncoderSpec",
    "HeadSpec",
    "ImagesSpec",
    "IndexerSpec",
    "LayerInputSpec",
    "MlaSpec",
    "MlpSpec",
    "ModelSpec",
    "MoeSpec",
    "NormSpec",
    "OutputSpec",
    "RecurrenceSpec",
    "RopeSpec",
    "RouterSpec",
    "StreamsSpec",
    "StretchSpec",
]
