"""What a checkpoint says about its use, beyond what its decoder computes: pooling, heads for scores, sampling."""
