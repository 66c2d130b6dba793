"""Pixtral: LLaVA's architecture with a tower for images of any shape, written as Mistral Small 3 writes them."""

import dataclasses

from lmdeploy.vl.families import mistral3

FAMILY = dataclasses.replace(mistral3.FAMILY, architectures=("LlavaForConditionalGeneration",), tower="pixtral")
