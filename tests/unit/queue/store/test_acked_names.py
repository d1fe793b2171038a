"""What an ack tells the shard: tokens in order, and under each the ids that it was given with."""

from hypothesis import given
from hypothesis import strategies as st

from services.queue.model import NamespaceId
from services.queue.store.shard_store import IDS_OF_A_TOKEN_MANY, _by_token

MANY = 3 * IDS_OF_A_TOKEN_MANY


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 2)), min_size=1, max_size=2 * MANY))
def test_each_token_has_its_own_ids(acks: list[tuple[str, int]]) -> None:
    """Few ids of a token, or many, repeated ones, the same under two: none is left out or told under another's."""
    ids, tokens = [item_id for item_id, _ in acks], [f"token-{token}" for _, token in acks]
    named = _by_token(ids, tokens, [NamespaceId(token) for _, token in acks])
    meant = [
        (f"token-{token}", sorted({item_id for item_id, mine in acks if mine == token})) for token in range(3)
    ]
    starts = [0, *named.lasts]
    found = [named.ids[start:end] for start, end in zip(starts, named.lasts, strict=False)]
    assert list(zip(named.tokens, found, strict=True)) == [(token, mine) for token, mine in meant if mine]
    namespaces = (
        named.namespace_ids if len(named.namespace_ids) > 1 else [*named.namespace_ids] * len(named.tokens)
    )
    assert [f"token-{namespace}" for namespace in namespaces] == list(named.tokens)
