"""What a finished experiment says, and where it is kept."""
