"""Starting runners and making sure that they end."""
