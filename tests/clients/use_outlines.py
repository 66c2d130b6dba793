"""outlines over an OpenAI client, used as its documentation says. Prints what came back as JSON."""

import json
import sys
from typing import Literal

import outlines
from openai import OpenAI
from shared_schemas import Person

client = OpenAI(base_url=sys.argv[1], api_key="k", max_retries=0)
openai_s, vllm_s = outlines.from_openai(client, "fake-model"), outlines.from_vllm(client, "fake-model")
results = {"answer": openai_s("Hello"), "stream": "".join(openai_s.stream("Hello"))}
for name, model in (("openai", openai_s), ("vllm", vllm_s)):
    results[name] = Person.model_validate_json(model("Who?", Person)).model_dump()
results["choice"] = vllm_s("Yes or no?", Literal["Yes", "No"])
print(json.dumps(results))
