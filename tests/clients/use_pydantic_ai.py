"""pydantic-ai over three APIs, used as its documentation says. Prints what came back as JSON."""

import json
import sys

from anthropic import AsyncAnthropic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from shared_schemas import Person

provider = OpenAIProvider(base_url=sys.argv[1], api_key="k")
anthropic = AsyncAnthropic(base_url=sys.argv[1].removesuffix("/v1"), api_key="k", max_retries=0)
MODELS = {
    "chat": OpenAIChatModel("fake-model", provider=provider),
    "responses": OpenAIResponsesModel("fake-model", provider=provider),
    "messages": AnthropicModel("fake-model", provider=AnthropicProvider(anthropic_client=anthropic)),
}
out = {}
for name, model in MODELS.items():
    agent, cities = Agent(model), []

    @agent.tool_plain
    def get_weather(location: str) -> str:
        """Report the weather."""
        cities.append(location)  # noqa: B023 - called before the next model
        return "Sunny"

    out[name] = {"answer": Agent(model).run_sync("Hello").output, "agent": [agent.run_sync("Weather?").output, cities]}
    out[name]["person"] = Agent(model, output_type=Person).run_sync("Who?").output.model_dump()
    if name != "messages":
        out[name]["native"] = Agent(model, output_type=NativeOutput(Person)).run_sync("Who?").output.model_dump()
print(json.dumps(out))
