"""Planted faults: what the suite would see if a guard were not there.

A mutation takes one guard out of the code: a condition of a statement, a recheck under a lock, a bound. The tests
that should see it are named beside it. `python -m tests.mutations` plants them one at a time in a copy of the tree
and runs those tests; what none of them sees is a promise that nobody holds. `--write` puts the outcome into
`docs/testing.md`.

The catalogue is in the modules that `catalogue` joins. A unit test keeps it applicable: each text occurs once in
its file, each test exists, and the page has each outcome.
"""
