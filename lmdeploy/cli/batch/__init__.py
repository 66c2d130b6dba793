"""``lmdeploy batch`` and ``lmdeploy warm``: a file of requests, computed in this process."""
