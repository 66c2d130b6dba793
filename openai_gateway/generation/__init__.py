"""From the engine's chunks to responses and events, whichever endpoint they are for."""
