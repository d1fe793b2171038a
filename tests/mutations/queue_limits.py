"""Mutations of what holds back the items of a topic, or of a fairness key: limits, throttles, their gates."""

from tests.mutations.model import Mutation

_GATES = "services/queue/gates/topic_gates.py"
_KEYS = "services/queue/gates/key_gates.py"
_SQL = "services/queue/store/sql/gates.sql"
_CONTRACT = "contract/test_queue_limits.py"
_OF_KEYS = "contract/test_queue_key_limits.py"
_PROCESSES = "integration/queue/test_topic_limits.py"
_SLOW = "integration/queue/test_slow_gates.py"
_LEFT = "integration/queue/test_left_grants.py"
_IN_TIME = "services/queue/gates/in_time.py"
_LEAVES = "services/queue/gates/leaves.py"
_KEYS_OF_PROCESSES = "integration/queue/test_key_limits.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "limits-read-in-order",
        "of two looks at limits the one that began first does not come last",
        _GATES,
        "        async with self._reading:\n            await self._read()\n        return 0\n",
        "        await self._read()\n        return 0\n",
        (
            "integration/queue/test_notices.py::test_a_look_that_began_before_something_was_set_does_not_end_after_it",
        ),
    ),
    Mutation(
        "quotas-read-in-order",
        "of two looks at quotas the one that began first does not come last",
        "services/queue/quotas.py",
        "        async with self._reading:\n            await self._read()\n        return 0\n",
        "        await self._read()\n        return 0\n",
        (
            "integration/queue/test_notices.py::test_a_look_that_began_before_something_was_set_does_not_end_after_it",
        ),
    ),
    Mutation(
        "notices-of-no-shard",
        "a process whose shards have all left the map is told nothing, and goes on",
        "services/queue/duties/notices.py",
        "zip(NONE, *found, strict=True)",
        "zip(*found, strict=True)",
        ("integration/queue/test_notices.py::test_a_process_whose_shards_have_all_left_the_map_reads_nothing",),
    ),
    Mutation(
        "limits-leased",
        "what is leased takes the room of a limited topic",
        _GATES,
        "room = min(room, self.limits.concurrency - self._in_flight - self.on_their_way)",
        "room = min(room, self.limits.concurrency - self.on_their_way)",
        (f"{_CONTRACT}::test_as_many_as_the_limit_are_in_flight_and_none_more",),
    ),
    Mutation(
        "limits-on-their-way",
        "what a call was granted and has not claimed yet takes its room, also after a crash",
        _GATES,
        "room = min(room, self.limits.concurrency - self._in_flight - self.on_their_way)",
        "room = min(room, self.limits.concurrency - self._in_flight)",
        (f"{_PROCESSES}::test_a_crash_behind_the_grant_keeps_its_room_until_it_is_over",),
    ),
    Mutation(
        "limits-tokens",
        "what is granted takes tokens of the rate",
        _GATES,
        "                self.tokens -= items\n",
        "                self.tokens -= 0\n",
        (f"{_CONTRACT}::test_a_rate_gives_a_burst_and_then_so_many_a_second",),
    ),
    Mutation(
        "limits-unused-tokens",
        "tokens of what could not be claimed are given back",
        _GATES,
        "self.tokens = min(self.tokens + unused, self.limits.burst)",
        "self.tokens = min(self.tokens, self.limits.burst)",
        (f"{_PROCESSES}::test_what_was_granted_and_not_claimed_gives_its_tokens_back",),
    ),
    Mutation(
        "limits-throttled",
        "nothing of a throttled topic is handed out, whoever asks",
        _GATES,
        "        if self.slow_s > 0:\n            return Grant(0, self.slow_s)\n",
        "",
        (f"{_PROCESSES}::test_a_throttled_topic_is_so_for_every_process_and_its_gate_goes",),
    ),
    Mutation(
        "limits-old-map",
        "a gate is where its topic is at home, and a process with an old map is granted nothing elsewhere",
        _SQL,
        "SELECT $1::text, $2::text, shard_now() WHERE coalesce((SELECT slots FROM shard) @> $3::int, true)",
        "SELECT $1::text, $2::text, shard_now() WHERE $3::int IS NOT NULL",
        (f"{_PROCESSES}::test_a_process_with_an_old_map_is_granted_nothing",),
    ),
    Mutation(
        "limits-old-map-of-keys",
        "the gate of a key is where its topic is at home",
        _SQL,
        "FROM unnest($3::text[]) AS u(key)\nWHERE coalesce((SELECT slots FROM shard) @> $4::int, true)\n",
        "FROM unnest($3::text[]) AS u(key)\nWHERE $4::int IS NOT NULL\n",
        (f"{_KEYS_OF_PROCESSES}::test_a_process_with_an_old_map_is_granted_nothing_of_a_key",),
    ),
    Mutation(
        "limits-longest-throttle",
        "of several throttles the one that ends last stands",
        _SQL,
        "DO UPDATE SET slow_until = greatest(g.slow_until, excluded.slow_until),",
        "DO UPDATE SET slow_until = excluded.slow_until,",
        (f"{_CONTRACT}::test_the_longest_throttle_stands_and_is_of_its_topic_alone",),
    ),
    Mutation(
        "limits-lifted-key",
        "who ends the throttle of a key ends no other",
        _SQL,
        "        AND ($4::text IS NULL OR key = $4::text) AND (SELECT is_home FROM here))",
        "        AND ($4::text IS NULL OR key IS NOT NULL) AND (SELECT is_home FROM here))",
        (f"{_OF_KEYS}::test_one_key_is_lifted_and_the_others_stay_throttled",),
    ),
    Mutation(
        "key-limits-held",
        "so many items of a key are in flight, and not one more",
        _KEYS,
        "            room = min(room, most - len(self.held))\n",
        "            room = min(room, most)\n",
        (f"{_OF_KEYS}::test_so_many_of_each_key_are_in_flight_and_no_key_holds_up_another",),
    ),
    Mutation(
        "key-limits-tokens",
        "an item that is let through takes a token of its key",
        _KEYS,
        "            self.tokens -= items\n",
        "            self.tokens -= 0\n",
        (f"{_OF_KEYS}::test_a_rate_is_one_for_each_key",),
    ),
    Mutation(
        "key-limits-filled",
        "each key's bucket is filled up to a time of its own",
        _KEYS,
        "        return KeptGate(self.row.key, self.tokens, self.row.at, held,",
        "        return KeptGate(self.row.key, self.tokens, self.row.filled_at, held,",
        ("integration/queue/test_key_limits.py::test_the_wait_for_another_keys_gate_fills_no_bucket_twice",),
    ),
    Mutation(
        "key-limits-throttled",
        "nothing of a throttled key is handed out, also where keys have limits",
        _KEYS,
        "        if self.slow_s > 0:\n            return Let([], gone, self.slow_s)\n",
        "",
        (f"{_OF_KEYS}::test_a_throttled_key_is_handed_out_to_nobody_until_its_time_is_over",),
    ),
    Mutation(
        "key-limits-unclaimed",
        "the room of what could not be claimed comes back",
        _KEYS,
        "                self.held.pop(item_id, None)\n                if self.tokens is not None:",
        "                if self.tokens is not None:",
        (f"{_KEYS_OF_PROCESSES}::test_an_item_that_two_processes_have_in_sight_keeps_its_room",),
    ),
    Mutation(
        "key-limits-unused-tokens",
        "tokens of a key are given back for what could not be claimed",
        _KEYS,
        "self.tokens = min(self.tokens + 1, self.limits.key_burst)",
        "self.tokens = min(self.tokens, self.limits.key_burst)",
        (f"{_KEYS_OF_PROCESSES}::test_what_was_let_through_and_not_claimed_gives_its_tokens_back",),
    ),
    Mutation(
        "limits-late-count",
        "a shard that does not say its count in time keeps nobody waiting",
        _IN_TIME,
        "await asyncio.wait(awaited, timeout=min(IN_TIME_S, within_s))",
        "await asyncio.wait(awaited)",
        (f"{_SLOW}::test_a_shard_that_does_not_say_its_count_in_time_counts_as_it_did_last",),
    ),
    Mutation(
        "limits-late-void",
        "what a shard said late is void where it was heard since",
        _GATES,
        "if self.marks.get(number) == told.mark:",
        "if told.mark:",
        ("unit/queue/gates/test_late_counts.py::test_it_is_void_where_the_shard_was_heard_since",),
    ),
    Mutation(
        "limits-late-elsewhere",
        "what went to other shards is not counted for one that says nothing",
        _GATES,
        "number: count if number in known else max(count - items, 0)",
        "number: count",
        (f"{_SLOW}::test_others_items_are_handed_out_one_after_another_while_a_shard_says_nothing",),
    ),
    Mutation(
        "limits-never-counted",
        "a shard that was never counted is waited for",
        _GATES,
        "if is_known or limits.concurrency is None else Grant(0)",
        "if is_known or limits else Grant(0)",
        (f"{_SLOW}::test_a_shard_that_was_never_counted_is_waited_for",),
    ),
    Mutation(
        "limits-each-home",
        "gates that stand keep nobody from those of another home",
        _IN_TIME,
        "self._holding.setdefault(home.number, asyncio.Semaphore(self._at_once_max))",
        "self._holding.setdefault(ShardNo(0), asyncio.Semaphore(self._at_once_max))",
        (f"{_SLOW}::test_gates_that_stand_keep_nobody_from_those_of_another_home",),
    ),
    Mutation(
        "grants-left-again",
        "a grant that could not be given back is given back later",
        _LEAVES,
        "                return leaves\n",
        "                return []\n",
        (f"{_LEFT}::test_what_could_not_be_given_back_is_given_back_later",),
    ),
    Mutation(
        "grants-left-once",
        "what was given back, and is another call's by now, is not given back again",
        _KEYS,
        "if let.until_s is not None and self.held.get(item_id) != let.until_s:",
        "if let.until_s is not None and item_id not in self.held:",
        (f"{_LEFT}::test_what_was_given_back_is_not_given_back_again_as_anothers",),
    ),
    Mutation(
        "grants-tokens-once",
        "tokens of a key that no row names are not given back a second time",
        _LEAVES,
        'if leave.is_known or error.outcome == "none":',
        "if leave.pair:",
        (f"{_LEFT}::test_tokens_that_are_known_by_nothing_are_not_given_back_twice",),
    ),
    Mutation(
        "grants-lost-answer",
        "a grant whose answer was lost is given back",
        _IN_TIME,
        "                await undo(done[0], False)\n",
        "                pass\n",
        (f"{_LEFT}::test_a_grant_whose_answer_was_lost_is_given_back",),
    ),
    Mutation(
        "grants-moved-home",
        "what is given back to a home that has moved is given back to the new one",
        _GATES,
        "            if row is None:\n                raise moved()\n",
        "            if row is None:\n                return\n",
        (f"{_LEFT}::test_what_is_given_back_to_a_home_that_has_moved_is_given_back_to_the_new_one",),
    ),
    Mutation(
        "room-of-the-unknown",
        "what may be leased to nobody has the room of its key",
        "services/queue/dispatch/gated_claims.py",
        "kept = got if is_known else {key.id for key in through.keys}",
        "kept = got",
        (f"{_LEFT}::test_what_may_be_leased_to_nobody_has_the_room_of_its_key_until_it_is_handed_back",),
    ),
    Mutation(
        "hand-back-unsure",
        "what a claim leased whose answer was lost is handed back",
        "services/queue/dispatch/claiming.py",
        "for key in claim.keys]\n        self._give_back(str(namespace), unused)\n",
        "for key in claim.keys]\n        assert unused\n",
        ("integration/queue/test_hand_backs.py::test_what_a_claim_leased_whose_answer_was_lost_is_handed_back",),
    ),
    Mutation(
        "hand-back-in-doubt",
        "what a claim leases after its answer was lost, and asked for, is handed back",
        "services/queue/leases/hand_backs.py",
        'result.status == "lease_lost" and now_s < item.doubt_until_s',
        'result.status == "lease_lost" and False',
        (
            "integration/queue/test_hand_backs.py"
            "::test_what_a_claim_leases_after_its_answer_was_lost_and_asked_for_is_handed_back",
        ),
    ),
    Mutation(
        "token-of-a-claim",
        "what a claim in doubt may have leased is not taken from its call, which got it by the next claim",
        "services/queue/dispatch/claiming.py",
        "        token = new_token()\n",
        '        token = "00000000-0000-4000-8000-000000000000"\n',
        (
            "integration/queue/test_hand_backs.py"
            "::test_what_a_call_gets_by_its_next_claim_is_not_handed_back_with_what_the_last_one_may_have_leased",
        ),
    ),
    Mutation(
        "hand-back-urgent",
        "what may be leased any moment is asked for before the shortest lease ends",
        "services/queue/leases/hand_backs.py",
        "        return any(now_s < item.doubt_until_s for item in unused)\n",
        "        return any(now_s > item.doubt_until_s for item in unused)\n",
        (
            "integration/queue/test_hand_backs.py"
            "::test_while_a_claim_is_in_doubt_it_is_asked_for_before_the_shortest_lease_ends",
        ),
    ),
    Mutation(
        "hand-back-going",
        "what is to be handed back when a process goes has a moment",
        "services/queue/app.py",
        "            await dispatch.ended()\n",
        "",
        ("integration/queue/test_hand_backs.py::test_what_is_to_be_handed_back_when_a_process_goes_has_a_moment",),
    ),
    Mutation(
        "gone-in-good-order",
        "an answer does not wait until a connection that has to go is closed",
        "shared/postgres/connections.py",
        "            _cut(lent.connection)\n            await _let_go(lent)\n        finally:\n",
        "            await _let_go(lent)\n        finally:\n",
        (
            "integration/test_lost_connections.py"
            "::test_an_answer_is_given_also_where_its_connection_has_to_go_and_its_server_is_silent",
        ),
    ),
    Mutation(
        "limits-keys-in-time",
        "who asks for fairness keys waits no longer than the call",
        _IN_TIME,
        "timeout=min(IN_TIME_S, within_s)",
        "timeout=IN_TIME_S",
        (f"{_SLOW}::test_who_asks_for_fairness_keys_waits_no_longer_than_the_call",),
    ),
    Mutation(
        "room-of-the-next",
        "a topic that gives nothing leaves its room in flight to the next of its call",
        "services/queue/dispatch/dequeue.py",
        "room - wanted))",
        "max(room - sum(counts[:i]), 0)))",
        ("contract/test_queue_quotas.py::test_a_topic_that_gives_nothing_leaves_its_room_to_the_next",),
    ),
    Mutation(
        "room-before-gates",
        "calls at once do not all find the same room in flight while their gates are asked",
        "services/queue/dispatch/gated_claims.py",
        "                tenant.gain(Use(leased=wanted))\n            got = set[str]()",
        "                pass\n            got = set[str]()",
        (
            "contract/test_queue_quotas.py"
            "::test_items_in_flight_are_never_over_their_limit_where_topics_have_limits_too",
        ),
    ),
    Mutation(
        "room-seen-free",
        "what a look may have seen go is not taken off the use a second time",
        "services/queue/quotas.py",
        "        if looks == self.looks:\n",
        "        if looks <= self.looks:\n",
        ("unit/queue/test_quotas.py::test_what_a_look_may_have_seen_go_is_not_taken_off_twice",),
    ),
)
