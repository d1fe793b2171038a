"""Functions as jobs, sent from web applications."""
