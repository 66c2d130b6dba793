"""``/api/...``: the API of Ollama's clients (github.com/ollama/ollama, docs/api.md), over chat completions."""
