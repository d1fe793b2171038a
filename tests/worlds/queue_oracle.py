"""What a history must not show: the queue's promises, each read off what clients sent and were answered.

Nothing here knows the services. A client that got no answer proves nothing, so whatever it may have done is
allowed for; only what no order of events could explain is told. Run it after everything was drained.
"""

from collections.abc import Callable, Iterator
from math import inf

from tests.worlds.facts import DID, TICK_S, Delivery, History, Sent, Word

_REMEMBERED_S = 600.0  # an id's end, for longer than this by any clock
_BACKOFF_S = 1.0


def judge(history: History) -> list[str]:
    """Every violation, as a sentence."""
    for item_id, deliveries in history.deliveries.items():
        for delivery in deliveries:
            if delivery.tag in history.sent:
                history.sent[delivery.tag].ids.add(item_id)
    found = [fault for look in _BY_SENT for sent in history.sent.values() for fault in look(history, sent)]
    owner = {item_id: sent for sent in history.sent.values() for item_id in sent.ids}
    for item_id in {**history.deliveries, **history.words}:
        # Not by when they came: of one round nobody knows which came first.
        deliveries = sorted(history.deliveries.get(item_id, ()), key=lambda one: (one.attempt, one.sent))
        words = history.words.get(item_id, [])
        item = _Item(item_id, deliveries, words, owner.get(item_id), history)
        found += [fault for look in _BY_ITEM for fault in look(item)]
    found += _paused(history)
    found += [
        f"{item_id} ({history.tags.get(item_id)}) was left behind {state} by nobody"
        for item_id, state in history.left.items()
        if item_id not in owner and item_id not in history.made
    ]
    return found


class _Item:
    """An item and all that is known of it; `sent` of a tenant's own, None of a DAG's."""

    def __init__(
        self, item_id: str, deliveries: list[Delivery], words: list[Word], sent: Sent | None, history: History
    ) -> None:
        self.id, self.deliveries, self.words, self.sent = item_id, deliveries, words, sent
        self.is_redriven = sent is not None and history.bulk(sent, "redrive")
        bulks = [
            bulk.sent for bulk in history.bulks if bulk.kind != "redrive" and sent and bulk.meets(*sent.place)
        ]
        # From when on it may have been cancelled with others.
        self.bulk_s = min(bulks, default=inf)

    def pairs(self) -> Iterator[tuple[Delivery, Delivery]]:
        """Each two of different leases, the one with the lower attempt first."""
        for n, first in enumerate(self.deliveries):
            for second in self.deliveries[n + 1 :]:
                if first.token != second.token:
                    yield first, second


def _fate(history: History, sent: Sent) -> str:
    """How an item ended as far as anybody can say; empty when nothing explains that it is gone."""
    [item_id] = sent.ids
    if (left := history.left.get(item_id)) is not None:
        return left if left == "dead" else ""
    if history.acts(item_id, "ack"):
        return "acked"
    if history.acts(item_id, "cancel") or history.bulk(sent, "purge", "cancel"):
        return "cancelled"
    ttl_s = sent.body.get("ttl_s")
    is_late = ttl_s is not None and history.ended_s >= sent.first_sent + ttl_s
    return "expired" if is_late or (sent.is_once and history.may_have_come(sent)) else ""


def _not_lost(history: History, sent: Sent) -> Iterator[str]:
    if len(sent.ids) > 1:
        yield f"{sent.tag} has the ids {sorted(sent.ids)}"
    elif sent.is_promised and sent.ids:
        [item_id] = sent.ids
        state = history.left.get(item_id, "gone")
        if not _fate(history, sent):
            yield f"{sent.tag} ({item_id}) was promised and is {state} without a reason"
        if state == "dead" and not sent.attempts_max and not history.acts(item_id, "nack"):
            yield f"{sent.tag} ({item_id}) died without a reason"


def _not_from_nowhere(history: History, sent: Sent) -> Iterator[str]:
    for item_id in sent.ids:
        for delivery in history.deliveries.get(item_id, []):
            if delivery.tag != sent.tag:
                yield f"{item_id} was enqueued as {sent.tag} and came as {delivery.tag}"
            if (delivery.namespace, delivery.topic) != (sent.namespace, sent.topic):
                yield f"{sent.tag} of {sent.namespace} came to {delivery.namespace} in {delivery.topic}"
            if not sent.is_possible:
                yield f"{sent.tag} was refused for certain, and came"


def _not_early(history: History, sent: Sent) -> Iterator[str]:
    for item_id in sent.ids:
        for delivery in history.deliveries.get(item_id, []):
            opened = sent.first_sent
            if sent.disabled:
                revives = [word.sent for word in history.acts(item_id, "revive")]
                if not revives or min(revives) > delivery.done:
                    yield f"{sent.tag} ({item_id}) was disabled, and came before anybody revived it"
                    continue
                opened = min(revives)
            if delivery.done < opened + sent.delay_s:
                yield f"{sent.tag} ({item_id}) came {opened + sent.delay_s - delivery.done:.3f} s too early"
            if sent.attempts_max and delivery.attempt > sent.attempts_max:
                yield f"{sent.tag} ({item_id}) came for the {delivery.attempt}. time of {sent.attempts_max}"
            if sent.is_once and delivery.attempt > 1:
                yield f"{sent.tag} ({item_id}) is to come at most once, and came again"


def _told_once(history: History, sent: Sent) -> Iterator[str]:
    if not sent.tells or not sent.is_promised or history.bulk(sent, "redrive"):
        return
    for item_id in sent.ids:
        ends = {end.id: end for end in history.ends.get(item_id, [])}
        if not ends and sent.met_cancel:
            continue
        if len(ends) != 1:
            yield f"the end of {sent.tag} ({item_id}) was told by {len(ends)} items: {ends}"
            continue
        [end] = ends.values()
        acks = history.acked([item_id])
        possible = {
            "acked": bool(acks),
            "cancelled": bool(history.acts(item_id, "cancel")) or history.bulk(sent, "purge", "cancel"),
            "dead": bool(sent.attempts_max or history.acts(item_id, "nack")),
            "expired": sent.is_once or "ttl_s" in sent.body,
        }
        if not possible[end.outcome]:
            yield f"the end of {sent.tag} ({item_id}) was told as {end.outcome}, which nobody brought about"
        if end.attempt and not history.may_have_come(sent):
            yield f"the end of {sent.tag} ({item_id}) tells of attempt {end.attempt}, and it never came"
        told = [word.given.get("output") for word in acks]
        if end.outcome == "acked" and end.output not in told:
            yield f"{sent.tag} ({item_id}) was acked with {told}, and {end.output!r} was told"


def _paused(history: History) -> Iterator[str]:
    """Of a paused topic nothing is handed out until it may have gone on."""
    for pause in history.gates:
        if not pause.is_paused or pause.known != "ok":
            continue
        resumed_s = min(
            (
                gate.sent
                for gate in history.gates
                if (gate.namespace, gate.topic) == (pause.namespace, pause.topic)
                and not gate.is_paused
                and gate.known != "fail"
                and gate.done >= pause.sent
            ),
            default=inf,
        )
        for came in history.deliveries.values():
            for one in came:
                is_its = (one.namespace, one.topic) == (pause.namespace, pause.topic)
                if is_its and pause.done < one.sent and one.done < resumed_s:
                    yield f"{one.id} of {one.topic} came, which was paused at {pause.done}: {one}"


def _leases_exclude(item: _Item) -> Iterator[str]:
    for first, second in item.pairs():
        if item.is_redriven and first.sent == second.sent:
            continue  # attempts begin anew, so nobody knows which was first
        bound = first.sent + first.lease_s
        given_back = False
        for word in item.words:
            if word.token != first.token or word.sent >= second.done:
                continue
            if word.verb in ("ack", "nack") and word.may_have_acted:
                given_back = True
            elif word.verb == "extend" and word.may_have_acted:
                extended = word.sent + word.number("lease_s", _own_lease_s(item))
                bound = extended if word.status == "extended" and extended > bound else min(bound, extended)
        if not given_back and first.sent <= second.done < bound:
            yield f"{item.id} was leased twice at once: {first} and {second}"


def _own_lease_s(item: _Item) -> float:
    return float(item.sent.body.get("lease_s", 60.0)) if item.sent is not None else 0.0


def _ack_is_final(item: _Item) -> Iterator[str]:
    winners = {word.token for word in item.words if word.status in DID["ack"] and word.is_own}
    if len(winners) > 1:
        yield f"{item.id} was acked under {len(winners)} tokens"
    for word in item.words:
        if word.status in DID["ack"] or (word.verb == "cancel" and word.status == "cancelled"):
            for delivery in item.deliveries:
                if delivery.sent > word.done:
                    yield f"{item.id} was {word.status}, and came again: {delivery}"
        acks = [
            other for other in item.words if other.verb == "ack" and other is not word and other.may_have_acted
        ]
        if word.verb == "ack" and word.status == "already_acked" and word.is_own and not acks:
            yield f"{item.id} was already acked, by nobody: {word}"
        if word.verb == "cancel" and word.status == "cancelled" and word.is_own:
            yield from (
                f"{item.id} was cancelled, and had been acked: {ack}"
                for ack in acks
                if ack.status == "acked" and ack.done < word.sent < ack.done + _REMEMBERED_S
            )


def _tokens_count(item: _Item) -> Iterator[str]:
    """Only the token of the last lease counts, only for its tenant, and no guessed one."""
    came = {delivery.token: delivery for delivery in item.deliveries}
    for word in item.words:
        if word.status not in DID[word.verb]:
            continue
        if not word.is_own:
            yield f"{item.id} was {word.status} for {word.namespace}, whose it is not"
        if not word.token or word.status == "already_acked":
            continue
        own = came.get(word.token)
        if own is None:
            yield f"{item.id} was {word.status} with a token that nobody was given"
            continue
        for later in item.deliveries:
            is_later = later.attempt > own.attempt and not item.is_redriven
            if later.token != own.token and is_later and later.done < word.sent:
                yield f"{item.id}: with the token of attempt {own.attempt} it was {word.status} after {later}"


def _live_tokens_win(item: _Item) -> Iterator[str]:
    """Who holds a lease that nobody ended is not told that it is lost."""
    if item.sent is None:
        return
    came = {delivery.token: delivery for delivery in item.deliveries}
    for word in item.words:
        own = came.get(word.token)
        if own is None or word.known != "ok" or not word.is_own or word.status in DID[word.verb]:
            continue
        others = [other for other in item.words if other is not word and other.sent <= word.done]
        bound = own.sent + own.lease_s
        for other in others:
            if other.verb == "extend" and other.token == word.token and other.may_have_acted:
                bound = min(bound, other.sent + other.number("lease_s", _own_lease_s(item)))
        ended = any(
            other.verb == "cancel" or (other.verb in ("ack", "nack") and other.token == word.token)
            for other in others
            if other.may_have_acted
        )
        if own.done < word.sent and word.done < min(bound, item.bulk_s) and not ended:
            yield f"{item.id}: {word.verb} under a lease that stands until {bound} was {word.status}: {word}"


def _attempts_grow(item: _Item) -> Iterator[str]:
    if item.is_redriven:
        return
    free = {word.token for word in item.words if word.given.get("costs_attempt") is False and word.may_have_acted}
    for first, second in item.pairs():
        if first.attempt == second.attempt:
            if not {first.token, second.token} & free:
                yield f"{item.id}: two leases are attempt {first.attempt}"
        elif second.done < first.sent:
            yield f"{item.id}: attempt {second.attempt} came before attempt {first.attempt}"
    if item.deliveries and item.deliveries[0].attempt < 1:
        yield f"{item.id}: attempts begin with 1"


def _not_before_its_delay(item: _Item) -> Iterator[str]:
    if item.is_redriven:
        return
    attempts = {delivery.token: delivery.attempt for delivery in item.deliveries}
    for word in item.words:
        if word.verb != "nack" or word.status != "requeued" or word.token not in attempts:
            continue
        cost = 0 if word.given.get("costs_attempt") is False else 1
        for delivery in item.deliveries:
            is_next = delivery.attempt == attempts[word.token] + cost and delivery.token != word.token
            if is_next and word.sent < delivery.done < word.sent + _pause_s(item, word) - TICK_S:
                yield f"{item.id} was given back for {word.given} and came before: {delivery}"


def _pause_s(item: _Item, word: Word) -> float:
    """For how long at least what was given back stays away."""
    if "delay_s" in word.given or item.sent is None or word.given.get("costs_attempt") is False:
        return word.number("delay_s", 0.0)
    return float(item.sent.body.get("backoff", {}).get("base_s", _BACKOFF_S))


_BY_SENT: list[Callable[[History, Sent], Iterator[str]]] = [_not_lost, _not_from_nowhere, _not_early, _told_once]
_BY_ITEM: list[Callable[[_Item], Iterator[str]]] = [
    _leases_exclude,
    _ack_is_final,
    _tokens_count,
    _live_tokens_win,
    _attempts_grow,
    _not_before_its_delay,
]
