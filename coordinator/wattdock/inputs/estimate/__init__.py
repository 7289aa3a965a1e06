"""What a model takes of a GPU's memory, worked out before anything runs. Pure."""
