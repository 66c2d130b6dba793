"""Chat templates: from a conversation to the prompt a model was trained on. ``lmdeploy.model`` is their public face."""
