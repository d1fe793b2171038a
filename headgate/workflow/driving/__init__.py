"""Cores against the service. driver: delivers a run's turns to its core; threads: where cores run."""
