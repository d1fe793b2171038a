"""Guards of what callers and operators are told when something fails: what was done, and whose mistake it is."""

from tests.mutations.model import Mutation

_BULK = "services/queue/operations/bulk.py"
_CONNECTIONS = "shared/postgres/connections.py"
_DELAY = "shared/admission/delay.py"
_LOOP = "shared/loop.py"

_OPERATIONS = "integration/queue/test_operation_outcomes.py"
_OUTCOMES = "integration/dag/test_outcomes.py"
_SOMETHING_DONE = "        with something_done():"


def _told(name: str, guards: str, path: str, follows: str, *tests: str) -> Mutation:
    return Mutation(name, guards, path, _SOMETHING_DONE + follows, "        if True:" + follows, tests)


MUTATIONS = (
    _told(
        "outcome-added",
        "nodes that were added and cannot be shown, or were cancelled meanwhile, are not told as not added",
        "services/dag/build/queue_registration.py",
        "\n            dag, nodes = await shard.pool.transaction(look)",
        f"{_OUTCOMES}::test_nodes_that_were_added_and_cannot_be_shown_are_perhaps_there",
        "integration/dag/test_control_races.py::test_r23_a_cancel_that_overtakes_the_enqueue_keeps_the_item_from_appearing",
    ),
    _told(
        "outcome-born",
        "a plain DAG that was made and cannot be shown is made nowhere else",
        "services/dag/build/create_batch.py",
        "\n            return await store.reads.get_dag",
        f"{_OUTCOMES}::test_a_dag_that_was_made_and_cannot_be_shown_is_made_nowhere_else",
    ),
    _told(
        "outcome-made",
        "a DAG that was made and cannot be shown is made nowhere else",
        "services/dag/build/create.py",
        "\n            dag = await store.reads.get_dag",
        f"{_OUTCOMES}::test_a_dag_that_was_made_and_cannot_be_shown_is_made_nowhere_else",
    ),
    _told(
        "outcome-resolved",
        "what was resolved is not told as not resolved, where nobody can say what waits for it",
        "services/dag/run/control.py",
        "\n            hints = await self._hints",
        f"{_OUTCOMES}::test_what_was_resolved_and_cannot_be_hinted_at_is_perhaps_resolved",
    ),
    _told(
        "outcome-quotas",
        "quotas that some shards have are not told as not set",
        "services/dag/build/quotas.py",
        "  # by another shard",
        f"{_OUTCOMES}::test_what_some_shards_have_taken_is_perhaps_done",
    ),
    _told(
        "outcome-export-mark",
        "a mark of an export that some shards have is not told as not set",
        "services/dag/read/export.py",
        "  # by another shard",
        f"{_OUTCOMES}::test_what_some_shards_have_taken_is_perhaps_done",
    ),
    _told(
        "outcome-operation-placed",
        "an operation that one shard has and that cannot be carried to the others now is not told as not begun",
        _BULK,
        "\n            written = await",
        f"{_OPERATIONS}::test_an_operation_that_was_begun_and_cannot_be_shown_is_perhaps_begun",
    ),
    _told(
        "outcome-operation-begun",
        "an operation that was begun and cannot be shown is not told as not begun",
        _BULK,
        "\n            for failure in await",
        f"{_OPERATIONS}::test_an_operation_that_was_begun_and_cannot_be_shown_is_perhaps_begun",
    ),
    _told(
        "outcome-operation-stopped",
        "an operation that was stopped on some shards is not told as not stopped",
        _BULK,
        "\n            # Twice:",
        f"{_OPERATIONS}::test_an_operation_that_is_stopped_on_one_shard_is_perhaps_stopped",
    ),
    Mutation(
        "lost-within-a-statement",
        "a connection that is lost between two messages of a statement is a shard that is away",
        _CONNECTIONS,
        "isinstance(error, AttributeError) and connection.is_closed()",
        "False",
        (
            "integration/test_lost_connections.py::"
            "test_a_connection_that_is_lost_within_a_statement_is_a_shard_that_is_away",
        ),
    ),
    Mutation(
        "away-is-no-error",
        "a shard that is away is no error of the duty that meets it",
        _LOOP,
        "    if isinstance(error, Unavailable):\n",
        "    if False:\n",
        ("unit/shared/test_loop.py::test_what_is_away_is_a_line_of_the_log_and_a_mistake_of_ours_a_traceback",),
    ),
    Mutation(
        "loop-stalls",
        "a loop that stood still between two looks is counted",
        _DELAY,
        "stall_s = ended_s - self._ended_s - SAMPLE_S",
        "stall_s = ended_s - begun_s - SAMPLE_S",
        ("unit/shared/admission/test_delay.py::test_a_loop_that_stood_still_between_two_looks_is_counted",),
    ),
)
