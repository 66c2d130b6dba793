"""Programs for developers: the default model, benchmarks, requirement pins."""
