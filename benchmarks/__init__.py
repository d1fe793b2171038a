"""Measurements of Headgate on one machine, against floors that run in the same minutes on the same server.

`python -m benchmarks --help` says how. Every scenario is a module in `benchmarks/scenarios`; it measures slices of
a few seconds, in turns, so that what slows the machine slows all sides of a comparison, and reports medians with
their spread. `load` drives load, `floors` are what the services are compared with, `machine` watches who used the
processors meanwhile, `report` writes `benchmarks/results/*.json` and the tables of `benchmarks/README.md`.
"""
