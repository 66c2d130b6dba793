"""How each API writes the events of a streamed answer."""
