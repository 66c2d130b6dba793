"""``lmdeploy batch``: a file of requests, answered in this process."""
