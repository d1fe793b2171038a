"""Guards in the queue's code: rechecks, bookkeeping on every outcome, memory that a failover voids."""

from tests.mutations.model import Mutation

_ACKS = "services/queue/leases/ack_flushes.py"
_CANCEL = "services/queue/leases/cancel.py"
_DEQUEUE = "services/queue/dispatch/dequeue.py"
_ENQUEUES = "services/queue/enqueue/general_enqueue.py"
_EXPIRY = "services/queue/leases/expiry.py"
_FAR_KEYS = "services/queue/duties/far_keys.py"
_HELD = "services/queue/leases/held_items.py"
_NAMES = "services/queue/store/names.py"
_OPERATIONS = "services/queue/operations/bulk.py"
_QUOTAS = "services/queue/quotas.py"
_RETENTION = "services/queue/duties/retention.py"
_SELECTING = "services/queue/operations/selection.py"
_REVIVE = "services/queue/leases/revive.py"
_VERBS = "services/queue/api/verbs.py"

_LIMITS = "integration/queue/test_topic_limits.py"
_REMOVING = "integration/test_removing_shards.py"
_TIME_LIMITS = "contract/test_queue_time_limits.py"
_CONTRACT_LEASES = "contract/test_queue_leases.py"
_CONTRACT_IDS = "contract/test_queue_ids.py"
_CONTRACT_CANCEL = "contract/test_queue_revive_cancel.py"
_CONTRACT_OPERATIONS = "contract/test_queue_operations.py"
_CONTRACT_QUOTAS = "contract/test_queue_quotas.py"
_INTERLEAVED = "integration/queue/test_interleaved.py"
_SHARED_FLUSH = "integration/queue/test_shared_flush.py"

MUTATIONS = (
    Mutation(
        "extend-past-timeout",
        "however often it is extended, a delivery ends at its timeout",
        "services/queue/leases/extend.py",
        "                lease_s = min(item.lease_s if lease_s is None else lease_s, room_s)",
        "                lease_s = item.lease_s if lease_s is None else lease_s",
        (f"{_TIME_LIMITS}::test_a_delivery_that_is_extended_for_ever_loses_its_lease_at_its_timeout",),
    ),
    Mutation(
        "extend-when-timed-out",
        "past its timeout nothing is extended",
        "services/queue/leases/extend.py",
        "                if room_s <= 0:",
        "                if room_s <= -3600:",
        (f"{_TIME_LIMITS}::test_past_its_timeout_nothing_is_extended_that_nobody_has_taken_back_yet",),
    ),
    Mutation(
        "order-over-shards",
        "items of one call keep their order, on whatever shards they come to live",
        _ENQUEUES,
        "            call = call._replace(as_of=await self._as_of({*groups, *keyed}))",
        "            await self._as_of({*groups, *keyed})",
        (
            "contract/test_queue_enqueue.py"
            "::test_items_whose_ids_their_caller_made_come_in_the_order_of_the_ids_from_whatever_shards",
        ),
    ),
    Mutation(
        "flush-of-one-id",
        "of an id that comes twice in a flush the first is taken",
        _ENQUEUES,
        "            first.setdefault(row.id, row)",
        "            first[row.id] = row",
        (f"{_SHARED_FLUSH}::test_an_id_that_two_namespaces_enqueue_in_one_flush_is_the_firsts",),
    ),
    Mutation(
        "enqueue-others-ids",
        "who repeats another tenant's id is told nothing of its item",
        _ENQUEUES,
        "            if found.namespace_id != namespace_id:",
        "            if False:",
        (f"{_CONTRACT_IDS}::test_the_id_of_another_namespace_is_refused_and_left_alone",),
    ),
    Mutation(
        "ack-shared-token",
        "a token that two namespaces name in one flush is its own one's",
        _ACKS,
        "if namespace_ids.count(namespace_ids[0]) < len(ids) and _is_shared(tokens, namespace_ids):",
        "if False:",
        (f"{_SHARED_FLUSH}::test_a_token_that_two_namespaces_name_in_one_flush",),
    ),
    Mutation(
        "ack-first-output",
        "of an ack that is repeated the first says what it gave",
        _ACKS,
        "            first.setdefault((token, item_id), output)",
        "            first[token, item_id] = output",
        (f"{_SHARED_FLUSH}::test_of_an_ack_that_is_repeated_the_first_says_what_it_gave",),
    ),
    Mutation(
        "ack-second-look",
        "an ack that waited for its holder's extend is made under the new lease",
        _ACKS,
        '        if status == "lease_lost" and statuses is not None',
        "        if False",
        (f"{_INTERLEAVED}::test_ack_against_the_heartbeat_of_the_same_holder",),
    ),
    Mutation(
        "ack-waits-for-the-disk",
        "an ack is answered once it is on the disk, but for the DAG service's own",
        _ACKS,
        '        flushes = self.flushes[shard, namespace == "_dag"]\n        [statuses]',
        "        flushes = self.flushes[shard, True]\n        [statuses]",
        ("integration/queue/test_shard_down.py::test_only_the_systems_own_namespace_commits_without_waiting",),
    ),
    Mutation(
        "ack-told-of-others",
        "the holder of a dead token is told nothing of another tenant's item",
        _HELD,
        "    if known is None or known.namespace_id != namespace_id:\n",
        "    if known is None:\n",
        (f"{_CONTRACT_LEASES}::test_another_namespace_cannot_settle",),
    ),
    Mutation(
        "nack-namespace",
        "a token is good in its own namespace only, for nack and extend",
        _HELD,
        "if group.namespace_id == namespace_id and entry.id in group.ids:",
        "if entry.id in group.ids:",
        (f"{_CONTRACT_LEASES}::test_another_namespace_cannot_settle",),
    ),
    Mutation(
        "nack-throttle",
        "a short throttle does not end a longer one",
        "services/queue/store/sql/gates.sql",
        "SET slow_until = greatest(g.slow_until, excluded.slow_until)",
        "SET slow_until = excluded.slow_until",
        ("contract/test_queue_limits.py::test_the_longest_throttle_stands_and_is_of_its_topic_alone",),
    ),
    Mutation(
        "nack-throttle-heard",
        "a topic without limits that one process throttles is so for the others",
        "services/queue/store/sql/topics.sql",
        "        OR EXISTS (SELECT FROM topic_gate WHERE slow_until > (SELECT shard_now())) AS limits;",
        "        AS limits;",
        (f"{_LIMITS}::test_a_throttled_topic_is_so_for_every_process_and_its_gate_goes",),
    ),
    Mutation(
        "limits-behind-a-throttle",
        "limits stand while their topic is throttled, and after it",
        "services/queue/gates/topic_gates.py",
        "found[pair] = max(given, found.get(pair, given))",
        "found[pair] = given",
        (f"{_LIMITS}::test_a_topic_that_was_throttled_keeps_its_limits_where_its_home_alone_answers",),
    ),
    Mutation(
        "gate-of-a-removed-shard",
        "what was leased on a shard that has left the map takes no room",
        "services/queue/gates/topic_gates.py",
        "for number, count in self.leased.items() if number in living}",
        "for number, count in self.leased.items()}",
        (f"{_REMOVING}::test_what_a_limited_topic_had_leased_on_a_shard_that_was_removed_takes_no_room",),
    ),
    Mutation(
        "key-gate-of-a-removed-shard",
        "what a key had leased on a shard that has left the map takes no room",
        "services/queue/gates/key_gates.py",
        "found.update(() if self._shards.version >= map_version else part)",
        "found.update(part)",
        (f"{_REMOVING}::test_what_a_key_had_leased_on_a_shard_that_was_removed_takes_no_room",),
    ),
    Mutation(
        "quota-of-a-removed-shard",
        "a quota that was lifted is lifted, whatever a shard that has left the map once said",
        "services/queue/quotas.py",
        "for number, rows in self._settings.items() if number in stores}",
        "for number, rows in self._settings.items()}",
        (f"{_REMOVING}::test_limits_and_quotas_that_are_lifted_once_a_shard_was_removed_are_lifted",),
    ),
    Mutation(
        "key-limits-others",
        "who does not get an item gives nothing back of the room of who has it",
        "services/queue/gates/key_gates.py",
        "gone = {item_id for item_id in ids if item_id in self.held}",
        "gone = set[str]()",
        ("integration/queue/test_key_limits.py::test_an_item_that_two_processes_have_in_sight_keeps_its_room",),
    ),
    Mutation(
        "buffer-put-back-twice",
        "what is put back after it was found anew is given to a call once",
        "services/queue/keys/key_buffer.py",
        "        keys = [key for key in keys if not self._has(key)]\n",
        "",
        ("unit/queue/keys/test_key_buffer.py::test_what_is_put_back_after_it_was_found_anew_is_there_once",),
    ),
    Mutation(
        "keys-known-since",
        "a key of another owner's shard that was put back after it was forgotten is known from then on",
        "services/queue/keys/key_cache.py",
        "self._known_since_s.get(key.id, now_s) for",
        "self._known_since_s[key.id] for",
        ("unit/queue/keys/test_key_cache.py",),
    ),
    Mutation(
        "key-limits-verified",
        "a key's room comes back when its lease ends, whoever ended it",
        "services/queue/gates/key_gates.py",
        "        return [item_id for item_id in among if self.held[item_id] <= now_s]",
        "        return [item_id for item_id in among if self.held[item_id] < 0]",
        ("contract/test_queue_key_limits.py::test_a_room_of_a_key_comes_back_whichever_way_a_lease_ends",),
    ),
    Mutation(
        "key-limits-silent",
        "items on a shard that does not answer count",
        "services/queue/gates/key_gates.py",
        "found.update(part if told is None else told)",
        "found.update(told or ())",
        ("integration/queue/test_key_limits.py::test_items_on_a_silent_shard_count",),
    ),
    Mutation(
        "key-limits-unknown",
        "an item whose key cannot be asked for is not handed out",
        "services/queue/gates/key_gates.py",
        "found |= dict.fromkeys(ids) if told is None",
        'found |= dict.fromkeys(ids, "") if told is None',
        ("integration/queue/test_key_limits.py::test_items_whose_keys_cannot_be_asked_for_are_not_handed_out",),
    ),
    Mutation(
        "key-limits-passed-over",
        "what was passed over is met again when its key may have room",
        "services/queue/dispatch/dispatcher.py",
        "            if line.aside:\n                line.forget()\n            line.wake_all()",
        "            line.wake_all()",
        (
            "contract/test_queue_key_limits.py::test_a_throttled_key_is_handed_out_to_nobody_until_its_time_is_over",
        ),
    ),
    Mutation(
        "key-gates-idle",
        "a gate that still holds items back is not removed",
        "services/queue/duties/idle_gates.py",
        "if item_id in leased}",
        "if not item_id}",
        ("integration/queue/test_key_limits.py::test_gates_that_hold_nothing_back_go_and_others_stay",),
    ),
    Mutation(
        "gates-move",
        "a gate goes along with its topic's slot",
        "shards/slots.py",
        "        await _bring_gates(here, source, there, target, slots)\n",
        "",
        ("integration/test_moving_slots.py::test_a_topic_whose_slot_moves_keeps_what_its_gate_holds_back",),
    ),
    Mutation(
        "nack-second-look",
        "a nack that waited for its holder's extend is made under the new lease",
        _HELD,
        "    for _ in range(LOOKS_MAX):",
        "    for _ in range(1):",
        (f"{_INTERLEAVED}::test_nack_against_the_heartbeat_of_the_same_holder",),
    ),
    Mutation(
        "looks-after-extends",
        "who waits for extends of the same holder looks as often as there are any",
        _HELD,
        "LOOKS_MAX = 8",
        "LOOKS_MAX = 2",
        ("unit/queue/leases/test_looks_again.py",),
    ),
    Mutation(
        "attempts-limit",
        "attempts count up to their limit and not one more",
        _HELD,
        "item.attempts + 1 >= item.max_attempts",
        "item.attempts >= item.max_attempts",
        (f"{_CONTRACT_LEASES}::test_attempts_are_used_up_by_nack_and_by_expiry",),
    ),
    Mutation(
        "sweep-acked-meanwhile",
        "what was acked between a sweep's look and its lock is remembered",
        _EXPIRY,
        "        if acked:  # between",
        "        if False:  # between",
        (
            "integration/queue/test_late_duties.py::test_what_was_acked_between_a_sweeps_look_and_its_lock_is_finished",
        ),
    ),
    Mutation(
        "cancel-namespace",
        "only its own namespace cancels an item",
        _CANCEL,
        "            if item.namespace_id != self._namespace_id:",
        "            if False:",
        (f"{_CONTRACT_CANCEL}::test_another_namespace_neither_revives_nor_cancels",),
    ),
    Mutation(
        "cancel-ended-namespace",
        "a cancel says nothing of another tenant's ended item",
        _CANCEL,
        "            if known.namespace_id != self._namespace_id:",
        "            if False:",
        (f"{_CONTRACT_CANCEL}::test_another_namespace_neither_revives_nor_cancels",),
    ),
    Mutation(
        "cancel-leaves-the-dead",
        "an item that died since a cancel's look keeps its place among the dead",
        _CANCEL,
        "        if dead - superseded:",
        "        if False:",
        (f"{_INTERLEAVED}::test_cancel_against_nack",),
    ),
    Mutation(
        "cancel-old-ids",
        "an id that is too old to come is given no tombstone",
        _CANCEL,
        "if oldest_ms <= time_ms_of(item_id) <= newest_ms]",
        "if time_ms_of(item_id) <= newest_ms]",
        (f"{_CONTRACT_CANCEL}::test_cancel_of_malformed_old_and_foreign_ids_is_not_found",),
    ),
    Mutation(
        "cancel-future-ids",
        "an id that is too new to be taken is given no tombstone, which would be forgotten before it",
        _CANCEL,
        "if oldest_ms <= time_ms_of(item_id) <= newest_ms]",
        "if oldest_ms <= time_ms_of(item_id)]",
        (f"{_CONTRACT_CANCEL}::test_a_cancel_that_cannot_be_kept_is_refused",),
    ),
    Mutation(
        "rotation-slack",
        "an end is remembered for the whole id window, and a little longer",
        _RETENTION,
        "age_s = self._settings.id_window_s + ENDED_SLACK_S",
        "age_s = self._settings.id_window_s - ENDED_SLACK_S",
        (
            "integration/queue/test_late_duties.py::test_what_ended_just_before_a_rotation_is_remembered_as_long_as_its_id_is_taken",
        ),
    ),
    Mutation(
        "quota-duplicates",
        "duplicates take no room of a quota",
        _QUOTAS,
        'strict=False) if status == "enqueued"]',
        'strict=False) if status in ("enqueued", "duplicate")]',
        (f"{_CONTRACT_QUOTAS}::test_what_was_not_taken_in_leaves_room",),
    ),
    Mutation(
        "quota-failed-enqueues",
        "an enqueue that fails takes no room of a quota",
        _QUOTAS,
        "zip(sizes, statuses, strict=False) if",
        'zip(sizes, statuses or ["enqueued"] * len(sizes), strict=False) if',
        (f"{_CONTRACT_QUOTAS}::test_an_enqueue_that_fails_leaves_room",),
    ),
    Mutation(
        "quota-missed-claims",
        "a claim in vain takes no room of those in flight",
        _DEQUEUE,
        "tenant.gained(Use(leased=wanted), Use(leased=wanted - got))",
        "tenant.gained(Use(leased=wanted), Use())",
        (f"{_CONTRACT_QUOTAS}::test_a_claim_in_vain_leaves_room",),
    ),
    Mutation(
        "quota-on-its-way",
        "what is on its way while the shards are looked at counts as use",
        _QUOTAS,
        "return self._gained.minus(self._on_its_way)",
        "return self._gained",
        ("unit/queue/test_quotas.py",),
    ),
    Mutation(
        "quota-nacks",
        "what is given back makes room for those in flight",
        _VERBS,
        "Use(leased=acked + back, items=acked)",
        "Use(leased=acked, items=acked)",
        (f"{_CONTRACT_QUOTAS}::test_items_in_flight_are_never_over_their_limit",),
    ),
    Mutation(
        "quota-bytes",
        "bytes that are stored are limited to the byte",
        _QUOTAS,
        "                if left < 0:",
        "                if left < -1:",
        (f"{_CONTRACT_QUOTAS}::test_what_a_namespace_stores_is_limited_by_items_and_by_bytes",),
    ),
    Mutation(
        "revive-shared-flush",
        "a stranger's revive in the same flush is told nothing",
        _REVIVE,
        "item.namespace_id == namespace_id and (manages or not item.managed)",
        "True and (manages or not item.managed)",
        ("integration/queue/test_two_hosts.py::test_a_foreign_revive_in_the_same_flush_takes_nobodys_place",),
    ),
    Mutation(
        "operations-cutoff",
        "what comes after an operation was asked for is left alone",
        _SELECTING,
        "if item.since > scope.cutoff or item.state not in wanted.states:",
        "if item.state not in wanted.states:",
        (f"{_CONTRACT_OPERATIONS}::test_a_redrive_takes_nobody_who_dies_later",),
    ),
    Mutation(
        "operations-stopped-twice",
        "an operation is stopped also where its row is just being written",
        _OPERATIONS,
        "        for _ in range(2):\n",
        "        for _ in range(1):\n",
        (
            "integration/queue/test_late_duties.py::test_an_operation_is_stopped_where_its_row_is_just_being_written",
        ),
    ),
    Mutation(
        "far-keys-living",
        "the key of an item on another shard is kept while that lives",
        _FAR_KEYS,
        'living[key.id].state if key.id in living else "gone"',
        '"gone"',
        (
            "integration/test_moving_slots.py::test_a_key_whose_item_stayed_is_kept_until_that_has_ended_and_a_day_more",
        ),
    ),
    Mutation(
        "failover-names",
        "numbers of names are forgotten with the server that gave them",
        _NAMES,
        "        shard.history.listeners.append(self.forget_all)\n",
        "",
        ("integration/queue/test_failover.py::test_a_key_of_a_lost_namespace_is_not_answered_with_anothers_item",),
    ),
    Mutation(
        "poll-jitter",
        "calls that wait do not all look again at the same moment",
        _DEQUEUE,
        "self._settings.poll_s * random.uniform(1.0, 1.5)",
        "self._settings.poll_s",
        ("integration/queue/test_herd.py::test_calls_that_wait_do_not_all_look_again_at_once",),
    ),
)
