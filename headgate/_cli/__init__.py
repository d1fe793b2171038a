"""The command line: `headgate <verb>`.

program: the parser, exit codes and errors; help_texts: examples in its help; a module for each group of commands:
commands (items, topics, DAGs), dequeue, explain, export, grow (graphs that grow), import_graph, limits, logs,
operations, quotas, runs and workflow, schedules, up, watch, why, workers, local_run (`dag run`) with shell (its
commands); submitting: a DAG on its way to the service; output: tables, JSON and progress; completion: scripts
for shells.
"""


def main() -> int:
    """Run the command that this process was started with; its exit code."""
    from headgate._cli.program import main as run

    return run()
