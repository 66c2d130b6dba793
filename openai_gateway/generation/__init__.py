"""From the engine's chunks to answers and events, whichever endpoint they are for."""
