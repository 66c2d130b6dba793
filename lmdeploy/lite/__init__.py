"""Making models smaller: ``lmdeploy lite``."""
