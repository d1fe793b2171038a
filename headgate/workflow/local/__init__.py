"""Runs without a service, for the tests of users.

memory: a run as the service keeps it, in memory; simulation: one that goes on at once, with answers of its own;
mocks: what it is answered.
"""
