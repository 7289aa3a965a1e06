"""Whether a measurement on this machine would be sound, and what to do where it would not."""
