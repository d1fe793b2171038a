"""What a history must not show: the queue's promises, each read off what clients sent and were answered.

Nothing here knows the services. A client that got no answer proves nothing, so whatever it may have done is
allowed for; only what no order of events could explain is told. Run it after everything was drained.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from tests.integration.soak.history import Delivery, History, Sent, Word

# Clocks of two processes of one machine are one; floats are not.
_EPSILON_S = 0.005


def judge(history: History) -> list[str]:
    """Every violation, as a sentence."""
    for item_id, deliveries in history.deliveries.items():
        for delivery in deliveries:
            if delivery.tag in history.sent:
                history.sent[delivery.tag].ids.add(item_id)
    found = [fault for look in _BY_SENT for sent in history.sent.values() for fault in look(history, sent)]
    for item_id in list(history.deliveries):
        # Not by when they came: an answer may stand in a stopped process while others go past it.
        deliveries = sorted(history.deliveries[item_id], key=lambda delivery: delivery.attempt)
        words = history.words[item_id]
        found += [fault for look in _BY_ITEM for fault in look(deliveries, words)]
    known = {item_id for sent in history.sent.values() for item_id in sent.ids}
    found += [
        f"{item_id} was left behind {state} by nobody"
        for item_id, state in history.left.items()
        if item_id not in known and item_id not in history.deliveries
    ]
    return found


def fates(history: History) -> Counter[str]:
    """How what was promised ended; `enqueued` is the sum of the others, or something was lost."""
    found: Counter[str] = Counter()
    for sent in history.sent.values():
        if sent.is_promised:
            found["enqueued"] += 1
            found[_fate(history, sent) or "lost"] += 1
        elif any(item_id in history.deliveries for item_id in sent.ids):
            found["recovered"] += 1  # nobody was answered, and yet it came
    return found


def _fate(history: History, sent: Sent) -> str:
    """How an item ended as far as anybody can say; empty when nothing explains that it is gone."""
    [item_id] = sent.ids
    if (left := history.left.get(item_id)) is not None:
        return left if left == "dead" else ""
    if history.acts(item_id, "ack"):
        return "acked"
    if history.acts(item_id, "cancel"):
        return "cancelled"
    return "expired" if sent.is_once else ""


def _not_lost(history: History, sent: Sent) -> Iterator[str]:
    if len(sent.ids) > 1:
        yield f"{sent.tag} has the ids {sorted(sent.ids)}"
    elif sent.is_promised:
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
            if not sent.is_possible:
                yield f"{sent.tag} was refused for certain, and came"


def _not_early(history: History, sent: Sent) -> Iterator[str]:
    for item_id in sent.ids:
        for delivery in history.deliveries.get(item_id, []):
            opened = sent.first_sent
            if sent.disabled:
                revives = [word.sent for word in history.acts(item_id, "revive")]
                if not revives or min(revives) > delivery.done:
                    yield f"{sent.tag} was disabled, and came before anybody revived it"
                    continue
                opened = min(revives)
            if delivery.done < opened + sent.delay_s - _EPSILON_S:
                yield f"{sent.tag} came {opened + sent.delay_s - delivery.done:.3f} s too early"
            if sent.attempts_max and delivery.attempt > sent.attempts_max:
                yield f"{sent.tag} came for the {delivery.attempt}. time of {sent.attempts_max}"
            if sent.is_once and delivery.attempt > 1:
                yield f"{sent.tag} is to come at most once, and came again"


def _told_once(history: History, sent: Sent) -> Iterator[str]:
    if not sent.tells or not sent.is_promised:
        return
    for item_id in sent.ids:
        ends = {end.id: end.outcome for end in history.ends.get(item_id, [])}
        if not ends and sent.met_cancel:
            continue
        if len(ends) != 1:
            yield f"the end of {sent.tag} ({item_id}) was told by {len(ends)} items: {ends}"
            continue
        [outcome] = ends.values()
        possible = {
            "acked": bool(history.acts(item_id, "ack")),
            "cancelled": bool(history.acts(item_id, "cancel")),
            "dead": history.left.get(item_id) == "dead",
            "expired": sent.is_once,
        }
        if not possible[outcome]:
            yield f"the end of {sent.tag} was told as {outcome}, which nobody brought about"


def _leases_exclude(deliveries: list[Delivery], words: list[Word]) -> Iterator[str]:
    for first, second in _pairs(deliveries):
        bound = first.sent + first.lease_s
        given_back = False
        for word in words:
            if word.token != first.token or word.sent >= second.done:
                continue
            if word.verb in ("ack", "nack") and word.may_have_acted:
                given_back = True
            elif word.verb == "extend" and word.may_have_acted:
                extended = word.sent + word.lease_s
                bound = extended if word.status == "extended" and extended > bound else min(bound, extended)
        if not given_back and second.done < bound - _EPSILON_S:
            yield f"{first.id} was leased twice at once: {first} and {second}"


def _ack_is_final(deliveries: list[Delivery], words: list[Word]) -> Iterator[str]:
    winners = {word.token for word in words if word.status in ("acked", "already_acked")}
    if len(winners) > 1:
        yield f"{words[0].id} was acked under {len(winners)} tokens"
    ends = [
        word
        for word in words
        if word.status in ("acked", "already_acked") or (word.verb == "cancel" and word.status == "cancelled")
    ]
    for word in ends:
        for delivery in deliveries:
            if delivery.sent > word.done:
                yield f"{word.id} was {word.status}, and came again: {delivery}"


def _old_tokens_are_dead(deliveries: list[Delivery], words: list[Word]) -> Iterator[str]:
    came = {delivery.token: delivery for delivery in deliveries}
    for word in words:
        own = came.get(word.token)
        if own is None or word.status not in ("acked", "requeued", "dead", "extended"):
            continue
        for later in deliveries:
            if later.token != own.token and later.attempt > own.attempt and later.done < word.sent:
                yield f"{word.id}: with the token of attempt {own.attempt} it was {word.status} after {later}"


def _attempts_grow(deliveries: list[Delivery], words: list[Word]) -> Iterator[str]:
    for first, second in _pairs(deliveries):
        if first.attempt == second.attempt:
            yield f"{first.id}: two leases are attempt {first.attempt}"
        elif second.done < first.sent:
            yield f"{first.id}: attempt {second.attempt} came before attempt {first.attempt}"
    if deliveries and min(delivery.attempt for delivery in deliveries) < 1:
        yield f"{deliveries[0].id}: attempts begin with 1"


def _not_before_its_delay(deliveries: list[Delivery], words: list[Word]) -> Iterator[str]:
    attempts = {delivery.token: delivery.attempt for delivery in deliveries}
    for word in words:
        if word.verb != "nack" or word.status != "requeued" or word.token not in attempts:
            continue
        for delivery in deliveries:
            is_next = delivery.attempt == attempts[word.token] + 1
            if is_next and delivery.done < word.sent + word.delay_s - _EPSILON_S:
                yield f"{word.id} was given back for {word.delay_s} s and came before: {delivery}"


def _pairs(deliveries: list[Delivery]) -> Iterator[tuple[Delivery, Delivery]]:
    """Each two of different leases, the one with the lower attempt first."""
    for n, first in enumerate(deliveries):
        for second in deliveries[n + 1 :]:
            if first.token != second.token:
                yield first, second


_BY_SENT: list[Callable[[History, Sent], Iterator[str]]] = [_not_lost, _not_from_nowhere, _not_early, _told_once]
_BY_ITEM: list[Callable[[list[Delivery], list[Word]], Iterator[str]]] = [
    _leases_exclude,
    _ack_is_final,
    _old_tokens_are_dead,
    _attempts_grow,
    _not_before_its_delay,
]
