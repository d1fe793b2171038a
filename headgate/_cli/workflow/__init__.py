"""The commands about workflows.

runs: those of the service; code: `lint` and `replay`, which need no service; checked: which code `check` replays
runs on; schedules: what begins at times.
"""
