"""``lmdeploy pull`` and ``lmdeploy rm``, and what commands that serve do about models of a hub."""
