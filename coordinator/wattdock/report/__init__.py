"""How results are shown; reads the store only."""
