"""Commands about models that see."""
