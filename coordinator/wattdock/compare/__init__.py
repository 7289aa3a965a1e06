"""Two sets of results, pair by pair, and whether one is worse than allowed."""
