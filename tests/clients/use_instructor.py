"""instructor in the modes in which the server holds the model to a schema. Prints which members came back as JSON."""

import json
import sys

import instructor
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


MODEL, URL = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Ann is 30 years old. Who is it?"}]
MODES = instructor.Mode
openai = OpenAI(base_url=URL, api_key="k", max_retries=0)
anthropic = Anthropic(base_url=URL.removesuffix("/v1"), api_key="k", max_retries=0)
results = {}
for mode in (MODES.TOOLS, MODES.TOOLS_STRICT, MODES.JSON_SCHEMA, MODES.RESPONSES_TOOLS):
    client = instructor.from_openai(openai, mode=mode)
    person = client.create(model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0)
    results[mode.value] = list(person.model_dump())
client = instructor.from_anthropic(anthropic, mode=MODES.ANTHROPIC_TOOLS)
person = client.create(model=MODEL, messages=MESSAGES, response_model=Person, max_retries=0, max_tokens=200)
results[MODES.ANTHROPIC_TOOLS.value] = list(person.model_dump())
print(json.dumps(results))
