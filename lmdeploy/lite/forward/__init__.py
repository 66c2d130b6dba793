"""One decoder layer computed from a ModelSpec by torch, in float32: what calibration sees of a model."""
