"""Twenty varied conversations: languages, code, emoji, system prompts, several turns."""

from typing import Any


def _turns(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    roles = ["user", "assistant"]
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


CONVERSATIONS: list[list[dict[str, Any]]] = [
    _turns("What is the capital of France?"),
    _turns("Write a short poem about the sea."),
    _turns("Explain photosynthesis to a child in three sentences."),
    _turns("List five prime numbers and say why each is prime."),
    _turns("你好！请用中文介绍一下北京。"),
    _turns("请把这句话翻译成英文：今天天气很好，我们去公园散步吧。"),
    _turns("日本語で自己紹介をしてください。"),
    _turns("Напиши предложение о зиме."),
    _turns("Write a Python function that returns the n-th Fibonacci number."),
    _turns("```c\nint main(void) { return 1 / 0; }\n```\nWhat is wrong with this program?"),
    _turns("SELECT name FROM users WHERE age > 30; What does this query do?"),
    _turns("Tell me a story with these emoji: 🐶🚀🌕🧀"),
    _turns("🙂"),
    _turns("What can you do?", system=""),
    _turns("Who are you?", system="You are a pirate. Answer like one."),
    _turns("Hello", system="Answer with a single word."),
    _turns("My name is Ada.", "Nice to meet you, Ada! How can I help?", "What is my name?"),
    _turns(
        "Give me a number.",
        "Seven.",
        "Double it.",
        "Fourteen.",
        "Now add three and explain.",
        system="You are a calculator.",
    ),
    _turns("a" * 300),
    _turns("The quick brown fox jumps over the lazy dog. " * 30 + "\nHow many animals are in this text?"),
]
