"""What classes of models share."""
