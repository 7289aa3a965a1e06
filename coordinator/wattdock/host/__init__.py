"""What this machine has: GPUs, folders, disk space."""
