"""All mutations, in the order in which they are listed."""

from tests.mutations import (
    console_code,
    dag_code,
    dag_statements,
    dag_times,
    mends,
    outcomes,
    queue_code,
    queue_handing,
    queue_limits,
    queue_logs,
    queue_statements,
    queue_unique,
    queue_workers,
    rechecks,
    reset_code,
    run_code,
    shared_code,
    workflow_code,
)
from tests.mutations.model import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *queue_statements.MUTATIONS,
    *queue_handing.MUTATIONS,
    *queue_code.MUTATIONS,
    *queue_limits.MUTATIONS,
    *queue_unique.MUTATIONS,
    *queue_logs.MUTATIONS,
    *queue_workers.MUTATIONS,
    *dag_statements.MUTATIONS,
    *dag_code.MUTATIONS,
    *dag_times.MUTATIONS,
    *shared_code.MUTATIONS,
    *workflow_code.MUTATIONS,
    *console_code.MUTATIONS,
    *run_code.MUTATIONS,
    *reset_code.MUTATIONS,
    *rechecks.MUTATIONS,
    *outcomes.MUTATIONS,
    *mends.MUTATIONS,
)
