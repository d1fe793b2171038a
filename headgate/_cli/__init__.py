"""The command line: `headgate <verb>`.

program: the parser, exit codes and errors; commands: what every command has; help_texts: examples in its help;
completion: scripts for shells; output: tables, JSON and progress. The commands of each service are in `queue`,
`dag` and `workflow`; those about all of it: logs, up, watch, why, worker.
"""


def main() -> int:
    """Run the command that this process was started with; its exit code."""
    from headgate._cli.program import main as run

    return run()
