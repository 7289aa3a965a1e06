"""launch/images."""
