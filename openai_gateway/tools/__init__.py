"""Tool calls in answers: what a request asks for, and the parser that finds them in streamed text."""
