"""How speed and energy change with the number of GPUs, from stored results. Pure."""
