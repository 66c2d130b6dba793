"""A chat page (Gradio) for a running Triton or a server with OpenAI's API, behind the gateway's limits."""
