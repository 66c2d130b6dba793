"""Public names and file extensions of images."""

IMAGE_TOKEN = "<IMAGE_TOKEN>"
"""In a text, the place of an image; as many as the message has images."""
VISION_FILE = "vision.json"
"""Of an engine directory: says which checkpoint has the part of the model that reads images; no file: there is none."""
