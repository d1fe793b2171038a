"""Guards where an ack or a revive leases what it makes ready to who waits for it, or goes on with a DAG itself.

And those of how calls that wait share.
"""

from tests.mutations.model import Mutation

_ITEMS = "services/queue/store/sql/items.sql"
_FOLD_COMPLETIONS = "migrations/queue/functions/fold_completions.sql"
_EMIT_COMPLETIONS = "migrations/queue/functions/emit_completions.sql"
_REVIVE_HERE = "migrations/queue/functions/revive_here.sql"
_REVIVE_ONE = "migrations/queue/functions/revive_one.sql"
_HAND_ARRIVED = "migrations/queue/functions/hand_arrived.sql"
_TELL_ACKED = "migrations/queue/functions/tell_acked.sql"
_LEAVE_BEHIND = "migrations/queue/functions/leave_behind.sql"

_ANSWERS = (
    "unit/shared/http/test_unsent_answers.py"
    "::test_an_answer_is_delivered_where_the_kernel_has_all_of_it_and_else_told_of_once"
)
_LINES = "services/queue/dispatch/direct_handoff.py"
_EVEN = "integration/queue/test_even_pulling.py"
_HANDED = "integration/queue/test_direct_handoff.py"
_GUARDS = "integration/queue/test_direct_handoff_guards.py"
_ARRIVING = "integration/queue/test_direct_handoff_enqueue.py"

MUTATIONS = (
    Mutation(
        "handing-delayed",
        "what is revived with a delay is not handed over before that has ended",
        _ITEMS,
        "FROM revived WHERE revived.topic_id = o.topic_id AND revived.is_ready\n",
        "FROM revived WHERE revived.topic_id = o.topic_id\n",
        (f"{_GUARDS}::test_what_is_opened_with_a_delay_waits_for_its_end",),
    ),
    Mutation(
        "handing-paused",
        "nothing of a paused topic is handed over by a revive",
        _ITEMS,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic_id FROM topic WHERE paused))",
        "WHERE true",
        (f"{_HANDED}::test_nothing_of_a_paused_topic_is_handed_over",),
    ),
    Mutation(
        "handing-paused-completions",
        "nothing of a paused topic is handed over by an ack",
        _EMIT_COMPLETIONS,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))",
        "WHERE true",
        (f"{_HANDED}::test_nothing_of_a_paused_topic_is_handed_over",),
    ),
    Mutation(
        "handing-paused-arriving",
        "nothing of a paused topic is handed over by an enqueue",
        _HAND_ARRIVED,
        "WHERE o.topic_id <> ALL (ARRAY(SELECT topic.topic_id FROM topic WHERE paused))",
        "WHERE true",
        (f"{_ARRIVING}::test_nothing_of_a_paused_topic_is_handed_over",),
    ),
    Mutation(
        "handing-arriving-ready",
        "what comes disabled or delayed is not handed over",
        _ITEMS,
        "FROM taken WHERE is_ready AND topic_id = ANY ($18::int[])) AS r,",
        "FROM taken WHERE topic_id = ANY ($18::int[])) AS r,",
        (f"{_ARRIVING}::test_what_is_not_ready_is_not_handed_over",),
    ),
    Mutation(
        "handing-arriving-once",
        "what is handed over as it comes is not ready as well",
        _ITEMS,
        "    WHERE is_ready AND id <> ALL (ARRAY(SELECT id FROM handed))),",
        "    WHERE is_ready),",
        (f"{_ARRIVING}::test_an_item_that_comes_while_a_call_waits_needs_no_claim",),
    ),
    Mutation(
        "handing-arriving-bytes",
        "what is handed over as it comes fits in the answer",
        _HAND_ARRIVED,
        "AND (x.nth = 1 OR x.bytes_so_far <= offer_bytes_max)),",
        "),",
        ("contract/test_answer_bytes.py::test_what_is_handed_to_a_call_as_it_comes_fits_too",),
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
        "FROM revived WHERE revived.topic_id = o.topic_id AND revived.is_ready\n",
        "FROM revived WHERE revived.topic_id = o.topic_id\n",
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
        "folding-one-paused",
        "nothing of a paused topic is handed over by an ack that releases it alone",
        _REVIVE_ONE,
        "AND NOT EXISTS (SELECT FROM topic WHERE topic.topic_id = revived.topic_id AND topic.paused)",
        "",
        ("integration/dag/test_folding_guards.py::test_an_item_of_a_paused_topic_is_not_handed_over",),
    ),
    Mutation(
        "folding-one-delayed",
        "a node with a delay that is released alone is not handed over before that has ended",
        _REVIVE_ONE,
        "is_ready := revived.deliver_at <= at AND revived.fairness_key IS NULL;",
        "is_ready := revived.fairness_key IS NULL;",
        ("integration/dag/test_folding_guards.py::test_a_delayed_item_is_not_handed_over_before_its_time",),
    ),
    Mutation(
        "folding-one-there",
        "an ack goes on with a DAG only if the one that it releases is there",
        _REVIVE_ONE,
        "    IF FOUND THEN\n        UPDATE item i SET",
        "    IF true THEN\n        UPDATE item i SET",
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
        "folding-news-in-full",
        "what asks as before revision 0015 is told in full what an ack has made ready",
        _LEAVE_BEHIND,
        "CASE WHEN are_short AND news.token IS NULL",
        "CASE WHEN news.token IS NULL",
        ("integration/test_upgrade.py::test_an_upgrade_under_load_loses_nothing_and_doubles_nothing",),
    ),
    Mutation(
        "folding-holder",
        "since when and by whom an item was held is told of its own lease, of several under one token",
        _LEAVE_BEHIND,
        "item.id = ANY (lease_groups.ids)",
        "true",
        (
            "integration/dag/test_folding_neighbours.py::test_of_several_leases_under_one_token_each_tells_of_its_own_items",
        ),
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
    Mutation(
        "even-share",
        "one call that waits does not take what others wait for",
        _LINES,
        "        if not (self.waiting or self.woken) or count > SHARED_COUNT_MAX:",
        "        if not (self.waiting or self.woken) or count > 1:",
        (f"{_EVEN}::test_five_items_for_five_calls_of_five_are_one_each",),
    ),
    Mutation(
        "even-woken",
        "who has been woken and has not looked yet is counted, too",
        _LINES,
        "return len(self.waiting) + self.woken",
        "return len(self.waiting)",
        ("unit/queue/keys/test_key_buffer.py::test_who_has_been_woken_and_has_not_looked_yet_keeps_its_share",),
    ),
    Mutation(
        "even-offers",
        "what is leased to a call by the flush that makes it ready is its share",
        _LINES,
        "terms.reserve(line.share(terms.items_max, entries))",
        "terms.reserve(terms.items_max)",
        (f"{_EVEN}::test_five_items_that_are_revived_together_are_one_each",),
    ),
    Mutation(
        "even-large",
        "a call for more than share is filled",
        _LINES,
        "if not (self.waiting or self.woken) or count > SHARED_COUNT_MAX:",
        "if not (self.waiting or self.woken):",
        (f"{_EVEN}::test_a_call_for_many_is_filled",),
    ),
    Mutation(
        "hand-back-again",
        "a hand-back that is refused is tried again",
        "shared/again.py",
        "            self._keep(self._do_again(key))\n",
        "",
        ("integration/queue/test_hand_backs.py::test_a_hand_back_that_is_refused_is_tried_again",),
    ),
    Mutation(
        "hand-back-soon",
        "what is refused is handed back soon after its shard is well",
        "shared/again.py",
        "PAUSE_S_MAX = 1.0\n",
        "PAUSE_S_MAX = 15.0\n",
        ("unit/shared/test_again.py::test_a_pause_is_never_long",),
    ),
    Mutation(
        "hand-back-together",
        "what is refused of a shard and namespace is tried again together",
        "shared/again.py",
        "        if key in self._refused:\n",
        "        if False:\n",
        ("unit/shared/test_again.py::test_what_is_left_of_a_key_is_tried_together",),
    ),
    Mutation(
        "handing-late-unoffered",
        "a call without room, of which a flush has the place and no offer, does not wait for it",
        "services/queue/dispatch/direct_handoff.py",
        "        if self._open:\n            self._timer",
        "        if self.offers:\n            self._timer",
        (
            "integration/queue/test_slow_claims.py"
            "::test_who_could_be_offered_nothing_by_a_slow_flush_is_answered_without_it_too",
        ),
    ),
    Mutation(
        "ack-folded-bytes",
        "an ack of very much output does not apply its ends itself",
        "services/queue/leases/ack_flushes.py",
        "for text in given.values()) > FOLDED_CHARS_MAX:",
        "for text in given.values()) < 0:",
        (
            "integration/dag/test_folding_outputs.py"
            "::test_outputs_that_are_too_much_for_an_ack_are_passed_on_by_completions",
        ),
    ),
    Mutation(
        "hand-back-untold",
        "what is delivered at most once was not where nobody was told of it",
        "services/queue/leases/nack.py",
        "is_dead |= item.at_most_once and not nack.is_untold",
        "is_dead |= item.at_most_once",
        (
            "integration/queue/test_hand_backs.py"
            "::test_what_is_delivered_at_most_once_was_not_where_its_claim_was_given_up",
        ),
    ),
    Mutation(
        "call-garbage",
        "what is to be done for an answer that nobody gets does not refer to its call",
        "services/queue/api/verbs.py",
        "call.undelivered = partial(self._hand_back, call.namespace, leased.groups)",
        "call.undelivered = lambda is_begun: self._hand_back(call.namespace, leased.groups, is_begun)",
        ("integration/queue/test_no_garbage.py",),
    ),
    Mutation(
        "answer-cut",
        "an answer that the kernel has not taken as a whole when its connection ends was not delivered",
        "shared/http/fast_http.py",
        "            protocol.unsent = answer.undelivered\n",
        "            pass\n",
        (
            "integration/queue/test_cut_answers.py"
            "::test_items_of_an_answer_that_was_cut_are_handed_back_at_no_attempt",
        ),
    ),
    Mutation(
        "answer-cut-asgi",
        "so it was where it was asked for in an unusual way",
        "shared/http/hot_path.py",
        "        protocol.unsent = undelivered\n",
        "        pass\n",
        (_ANSWERS,),
    ),
    Mutation(
        "answer-cut-once",
        "what is delivered at most once stays leased where a byte of its answer may have left",
        "services/queue/leases/nack.py",
        "if not (nacks[at].is_begun and items[nacks[at].id].at_most_once)",
        "if True",
        (
            "integration/queue/test_cut_answers.py"
            "::test_what_is_delivered_at_most_once_is_not_where_a_byte_of_its_answer_has_left",
        ),
    ),
    Mutation(
        "answer-taken",
        "an answer of which the kernel took the rest later was delivered",
        "shared/http/serve.py",
        "            self.unsent = None\n            if not self.transport",
        "            if not self.transport",
        (_ANSWERS,),
    ),
    Mutation(
        "answer-alone",
        "what is left of an answer, however little, is of that answer alone",
        "shared/http/serve.py",
        "            transport.set_write_buffer_limits(high=0)\n",
        "",
        (_ANSWERS,),
    ),
    Mutation(
        "answer-lingers",
        "who reads an answer to its end behind a refusal has got it",
        "shared/http/refusals.py",
        "        self._before.resume_writing()\n",
        "        pass\n",
        (_ANSWERS,),
    ),
)
