"""The commands about workflows.

runs: those of the service; code: `lint` and `replay`, which need no service; schedules: what begins at times.
"""
