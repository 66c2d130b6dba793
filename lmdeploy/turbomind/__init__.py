"""From a checkpoint to the C++ engine: model spec, weight manifest, engine directory."""
