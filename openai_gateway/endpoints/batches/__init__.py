"""``/v1/batches``: files of requests that are answered when there is time."""
