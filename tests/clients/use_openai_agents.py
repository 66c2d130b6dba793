"""openai-agents, used as its documentation says, over both of OpenAI's APIs. Prints what came back as JSON."""

import asyncio
import json
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from shared_schemas import Person

cities = []


@function_tool
def get_weather(location: str) -> str:
    """Tell the weather."""
    cities.append(location)
    return "Sunny"


async def main() -> None:
    """Let an agent call its tool and answer."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="k", max_retries=0)
    results = {}
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="fake-model", openai_client=client)
        agent = Agent(name="weather", tools=[get_weather], model=model)
        cities.clear()
        response = (await Runner.run(agent, "Weather?", max_turns=3)).final_output
        person = (await Runner.run(Agent(name="person", output_type=Person, model=model), "Who?")).final_output
        results[kind.__name__] = [list(cities), response, person.model_dump()]
    print(json.dumps(results))


asyncio.run(main())
