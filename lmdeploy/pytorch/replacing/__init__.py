"""What takes the place of parts of the modelling code of ``transformers`` and, in workers, of PyTorch."""
