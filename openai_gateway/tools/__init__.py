"""Tool calls in answers: one file a notation, and the parser that finds them in streamed text."""
