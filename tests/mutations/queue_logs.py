"""Guards of what jobs log."""

from tests.mutations.model import Mutation

_STATEMENTS = "services/queue/store/sql/job_logs.sql"
_WRITES = "services/queue/leases/job_logs.py"
_TESTS = "contract/test_queue_logs.py"
_HOLDER = (f"{_TESTS}::test_only_the_holder_writes",)

MUTATIONS = (
    Mutation(
        "logs-lock",
        "calls that write logs of one namespace follow one another, so its bound is exact",
        _STATEMENTS,
        "WHERE namespace_id = $1::int FOR UPDATE;",
        "WHERE namespace_id = $1::int;",
        (f"{_TESTS}::test_logs_of_a_namespace_are_bounded_exactly_and_age_makes_room",),
    ),
    Mutation(
        "logs-token",
        "only who holds an item writes its log",
        _STATEMENTS,
        "WHERE lease.token = asked.token AND",
        "WHERE",
        _HOLDER,
    ),
    Mutation(
        "logs-item",
        "a token writes the log of its item alone",
        _STATEMENTS,
        " AND asked.id = ANY (lease.ids) LIMIT 1",
        " LIMIT 1",
        _HOLDER,
    ),
    Mutation(
        "logs-cancelled",
        "who held a cancelled item writes its log no more",
        _STATEMENTS,
        "ended.id = asked.id AND ended.outcome = 'cancelled' OFFSET",
        "ended.id = asked.id AND ended.outcome = 'none' OFFSET",
        _HOLDER,
    ),
    Mutation(
        "logs-namespace",
        "a log is read in its namespace alone",
        _STATEMENTS,
        "AND job_log.namespace_id = n.namespace_id AND",
        "AND",
        (f"{_TESTS}::test_another_tenant_reads_nothing",),
    ),
    Mutation(
        "logs-repeated",
        "a call that is sent again writes nothing twice",
        _WRITES,
        "log.token == batch.lease_token and batch.number <= log.number",
        "False",
        (f"{_TESTS}::test_a_repeated_call_writes_nothing_twice",),
    ),
    Mutation(
        "logs-item-bound",
        "the log of an item is bounded, over all its attempts",
        _WRITES,
        "if log.bytes >= settings.log_item_bytes_max:",
        "if False:",
        (f"{_TESTS}::test_the_log_of_an_item_is_bounded_and_says_so",),
    ),
    Mutation(
        "logs-freed",
        "what is dropped makes room",
        _STATEMENTS,
        "UPDATE job_log_use SET bytes = job_log_use.bytes - (",
        "UPDATE job_log_use SET bytes = job_log_use.bytes - 0 * (",
        (f"{_TESTS}::test_logs_of_a_namespace_are_bounded_exactly_and_age_makes_room",),
    ),
)
