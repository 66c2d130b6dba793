"""A chat page for a running Triton server (Gradio). Talks to it through ``lmdeploy.serve.client`` only."""
