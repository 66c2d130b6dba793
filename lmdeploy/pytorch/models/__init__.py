"""Models in the engine's own style: a class a family, on the layers of `lmdeploy.pytorch.nn`."""
