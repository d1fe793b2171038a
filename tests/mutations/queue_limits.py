"""Mutations of what holds back the items of a topic, or of a fairness key: limits, throttles, their gates."""

from tests.mutations.model import Mutation

_GATES = "services/queue/gates/topic_gates.py"
_KEYS = "services/queue/gates/key_gates.py"
_SQL = "services/queue/store/sql/gates.sql"
_CONTRACT = "contract/test_queue_limits.py"
_OF_KEYS = "contract/test_queue_key_limits.py"
_PROCESSES = "integration/queue/test_topic_limits.py"
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
        "room = min(room, self.limits.concurrency - sum(self.leased.values()) - self.on_their_way)",
        "room = min(room, self.limits.concurrency - self.on_their_way)",
        (f"{_CONTRACT}::test_as_many_as_the_limit_are_in_flight_and_none_more",),
    ),
    Mutation(
        "limits-on-their-way",
        "what a call was granted and has not claimed yet takes its room, also after a crash",
        _GATES,
        "room = min(room, self.limits.concurrency - sum(self.leased.values()) - self.on_their_way)",
        "room = min(room, self.limits.concurrency - sum(self.leased.values()))",
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
        "room-of-the-next",
        "a topic that gives nothing leaves its room in flight to the next of its call",
        "services/queue/dispatch/dequeue.py",
        "            room -= len(keys)\n",
        "            room -= min(counts[i], room)\n",
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
