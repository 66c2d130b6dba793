"""Names that users of pictures write."""

IMAGE_TOKEN = "<IMAGE_TOKEN>"
"""In a text, the place of a picture; as many as the message has pictures."""
