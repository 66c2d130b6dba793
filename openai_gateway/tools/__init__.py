"""Tool calls in responses: what a request asks for, and the parser that finds them in streamed text."""
