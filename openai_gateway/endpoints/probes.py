"""Model descriptions of LM Studio and llama.cpp, for clients that look there for context length and capabilities."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from openai_gateway.endpoints.ollama.described import capabilities, listed
from openai_gateway.gateway import GatewayDependency

router = APIRouter()


@router.get("/api/v0/models")
async def lm_studio_models(gateway: GatewayDependency) -> dict[str, Any]:
    """List the models as LM Studio's older API does."""
    data = []
    for model, report in (await gateway.sleep_reports()).items():
        details, context_len = listed(model, gateway.started)["details"], await model.context_len()
        data.append(
            {
                "id": model.name,
                "object": "model",
                "type": _type(capabilities(model)),
                "publisher": "lmdeploy",
                "arch": details["family"],
                "compatibility_type": details["format"],
                "quantization": details["quantization_level"],
                "state": "loaded" if report is None or report.state == "awake" else "not-loaded",
                "max_context_length": context_len,
                "loaded_context_length": context_len,
                "capabilities": ["tool_use"],
            }
        )
    return {"object": "list", "data": data}


@router.get("/api/v1/models")
async def lm_studio_models_v1(gateway: GatewayDependency) -> dict[str, Any]:
    """List the models as LM Studio does."""
    models = []
    for model, report in (await gateway.sleep_reports()).items():
        entry, can = listed(model, gateway.started), capabilities(model)
        details, context_len = entry["details"], await model.context_len()
        instance = {"id": model.name, "config": {"context_length": context_len}}
        models.append(
            {
                "type": "embedding" if _type(can) == "embeddings" else "llm",
                "publisher": "lmdeploy",
                "key": model.name,
                "display_name": model.name,
                "architecture": details["family"] or None,
                "quantization": {"name": details["quantization_level"] or None, "bits_per_weight": None},
                "size_bytes": entry["size"],
                "params_string": details["parameter_size"] or None,
                "loaded_instances": [instance] if report is None or report.state == "awake" else [],
                "max_context_length": context_len,
                "format": details["format"],
                "capabilities": {"vision": "vision" in can, "trained_for_tool_use": True},
                "description": None,
            }
        )
    return {"models": models}


@router.get("/props")
async def llama_cpp_properties(gateway: GatewayDependency) -> dict[str, Any]:
    """Describe the model as llama.cpp's server does."""
    model = await gateway.default_model()
    return {
        "default_generation_settings": {"n_ctx": await model.context_len(), "params": {**model.sampling_defaults}},
        "total_slots": gateway.settings.max_requests,
        "model_alias": model.name,
        "model_path": model.name,
        "modalities": {"vision": not model.is_text_only, "audio": False},
    }


@router.get("/slots")
async def llama_cpp_slots(gateway: GatewayDependency) -> list[dict[str, Any]]:
    """Return one slot, which stands for all: how many run is up to the engine."""
    model = await gateway.default_model()
    is_busy = gateway.open_requests.count > 1  # this one is open too
    return [{"id": 0, "n_ctx": await model.context_len(), "is_processing": is_busy}]


def _type(can: list[str]) -> str:
    if "vision" in can:
        return "vlm"
    return "embeddings" if "embedding" in can else "llm"
