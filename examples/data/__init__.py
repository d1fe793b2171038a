"""Real graphs, and the scripts that derived them."""
