"""LLaVA with norms in its projector (Yi-VL), which ``transformers`` does not have."""

from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration


class _Projector(nn.Module):  # type: ignore[misc]
    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        hidden = config.text_config.hidden_size
        self.linear_1 = nn.Linear(config.vision_config.hidden_size, hidden)
        self.norm_1 = nn.LayerNorm(hidden)
        self.linear_2 = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)

    def forward(self, patches: Tensor) -> Tensor:
        """Return the rows of patches ``[..., patches, tower's hidden]``."""
        normed = self.norm_1(self.linear_1(patches))
        rows: Tensor = self.norm_2(self.linear_2(nn.functional.gelu(normed)))
        return rows


class NormedLlava(LlavaForConditionalGeneration):  # type: ignore[misc]
    """LLaVA 1.5 whose projector is a linear layer, a norm, GELU, a linear layer and a norm."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.model.multi_modal_projector = _Projector(config)
        self.post_init()
