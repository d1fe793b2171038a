"""Guards where an ack or a revive leases what it makes ready to who waits for it, or goes on with a DAG itself."""

from tests.mutations.model import Mutation

_HANDING = "services/queue/store/sql/handing.sql"
_FOLD_COMPLETIONS = "migrations/queue/functions/fold_completions.sql"
_HAND_COMPLETIONS = "migrations/queue/functions/hand_completions.sql"
_REVIVE_HERE = "migrations/queue/functions/revive_here.sql"
_TELL_ACKED = "migrations/queue/functions/tell_acked.sql"

_HANDED = "integration/queue/test_direct_handoff.py"
_GUARDS = "integration/queue/test_direct_handoff_guards.py"

MUTATIONS = (
    Mutation(
        "handing-ack-key-namespace",
        "an ack that hands over frees its own namespace's key",
        _HANDING,
        "WHERE dedup.namespace_id = m.namespace_id AND dedup.key = m.idempotency_key OFFSET 0",
        "WHERE dedup.key = m.idempotency_key OFFSET 0",
        (f"{_GUARDS}::test_an_ack_frees_no_key_of_another_namespace",),
    ),
    Mutation(
        "handing-ack-namespace",
        "a token is good in its own namespace only, also where an ack hands over",
        _HANDING,
        "WHERE l.namespace_id = ($3::int[])[least(l.nth, cardinality($3::int[]))] OFFSET 0",
        "WHERE $3::int[] IS NOT NULL OFFSET 0",
        (f"{_GUARDS}::test_another_namespace_acks_nothing",),
    ),
    Mutation(
        "handing-revive-namespace",
        "only its own namespace revives an item, also where a call waits for it",
        _HANDING,
        "WHERE p.namespace_id = w.namespace_id AND p.reason = 'disabled'",
        "WHERE p.reason = 'disabled'",
        (f"{_GUARDS}::test_another_namespace_opens_nothing",),
    ),
    Mutation(
        "handing-revive-dead",
        "the dead are not revived, also where a call waits for them",
        _HANDING,
        "AND p.reason = 'disabled' AND ($4::bool OR NOT p.managed)",
        "AND ($4::bool OR NOT p.managed)",
        (f"{_GUARDS}::test_the_dead_stay_dead",),
    ),
    Mutation(
        "handing-revive-managed",
        "only the DAG service revives an item of a DAG, also where a call waits for it",
        _HANDING,
        "AND p.reason = 'disabled' AND ($4::bool OR NOT p.managed)",
        "AND p.reason = 'disabled' AND $4::bool IS NOT NULL",
        (f"{_GUARDS}::test_an_item_of_a_dag_is_opened_by_the_dag_service_only",),
    ),
    Mutation(
        "handing-delayed",
        "what is revived with a delay is not handed over before that has ended",
        _HANDING,
        "FROM u WHERE u.topic_id = o.topic_id AND u.is_ready\n",
        "FROM u WHERE u.topic_id = o.topic_id\n",
        (f"{_GUARDS}::test_what_is_opened_with_a_delay_waits_for_its_end",),
    ),
    Mutation(
        "handing-paused",
        "nothing of a paused topic is handed over by a revive",
        _HANDING,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic_id FROM topic WHERE paused))",
        "WHERE true",
        (f"{_HANDED}::test_nothing_of_a_paused_topic_is_handed_over",),
    ),
    Mutation(
        "handing-paused-completions",
        "nothing of a paused topic is handed over by an ack",
        _HAND_COMPLETIONS,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))",
        "WHERE true",
        (f"{_HANDED}::test_nothing_of_a_paused_topic_is_handed_over",),
    ),
    Mutation(
        "folding-paused",
        "nothing of a paused topic is handed over by an ack that goes on with its DAG",
        _REVIVE_HERE,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))",
        "WHERE true",
        ("integration/dag/test_folding_guards.py::test_an_item_of_a_paused_topic_is_not_handed_over",),
    ),
    Mutation(
        "folding-delayed",
        "a node with a delay is not handed over before that has ended",
        _REVIVE_HERE,
        "FROM u WHERE u.topic_id = o.topic_id AND u.is_ready\n",
        "FROM u WHERE u.topic_id = o.topic_id\n",
        ("integration/dag/test_folding_guards.py::test_a_delayed_item_is_not_handed_over_before_its_time",),
    ),
    Mutation(
        "folding-all-or-none",
        "an ack goes on with a DAG only if all that it releases is there",
        _REVIVE_HERE,
        "    HAVING count(*) = cardinality(wanted);",
        "    HAVING true;",
        ("integration/dag/test_folding.py::test_a_child_whose_item_is_not_there_is_released_the_ordinary_way",),
    ),
    Mutation(
        "folding-system-namespace",
        "a tenant's own topic of an ack topic's name leads to no DAG",
        _FOLD_COMPLETIONS,
        "AND topic.namespace_id = (SELECT namespace_id FROM namespace WHERE name = '_dag') OFFSET 0",
        "OFFSET 0",
        (
            "integration/dag/test_folding_guards.py::test_a_tenants_own_topic_of_an_ack_topics_name_leads_to_no_dag",
        ),
    ),
    Mutation(
        "folding-ends",
        "one ack applies so many ends and not one more",
        _FOLD_COMPLETIONS,
        "items_max CONSTANT int := 2000;",
        "items_max CONSTANT int := 2001;",
        ("integration/dag/test_folding_many.py::test_ends_beyond_those_of_one_ack_are_told",),
    ),
    Mutation(
        "folding-told-once",
        "an end that was applied is not told of again",
        _TELL_ACKED,
        "WHERE u.id <> ALL (taken)",
        "WHERE true",
        (
            "integration/dag/test_folding_guards.py::test_of_two_ends_in_one_ack_only_the_one_that_was_not_applied_is_told",
        ),
    ),
)
