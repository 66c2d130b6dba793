"""instructor, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


said = {}
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
    client = instructor.from_openai(OpenAI(base_url=sys.argv[1], api_key="k", max_retries=0), mode=mode)
    messages = [{"role": "user", "content": "Who?"}]
    person = client.chat.completions.create(model="fake-model", messages=messages, response_model=Person)
    said[mode.value] = person.model_dump()
print(json.dumps(said))
