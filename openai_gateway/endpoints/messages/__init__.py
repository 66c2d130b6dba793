"""``POST /v1/messages``, as Anthropic's clients ask."""
