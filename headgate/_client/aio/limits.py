"""Limits of topics, for coroutines."""

from typing import Any

from headgate._calls import verbs
from headgate._calls.elements import Part
from headgate._calls.flows import listed
from headgate._calls.verbs import Call
from headgate._client.aio.sender import AsyncSender
from headgate.wire import TopicLimitsView


class AsyncLimits:
    """What topics hand out at most, whoever takes it. `namespace` of a method overrides the client's."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def all(self, *, limit: int | None = None, namespace: str | None = None) -> list[TopicLimitsView]:
        """The topics that have limits or are throttled, by name, or the first `limit`; with what is in flight."""
        parse = verbs.page_of(TopicLimitsView)
        ns = namespace or self._client.namespace

        def build(page: dict[str, Any]) -> Call[Part[TopicLimitsView]]:
            return verbs.call(verbs.TOPIC_LIMITS, parse, query=page, ns=ns)

        return await self._client._run(listed(build, limit))

    async def get(self, topic: str, *, namespace: str | None = None) -> TopicLimitsView | None:
        """The limits of a topic, and what is throttled of it; None: nothing is."""
        ns = namespace or self._client.namespace
        parse = verbs.page_of(TopicLimitsView)
        page = await self._client._send(verbs.call(verbs.TOPIC_LIMITS, parse, query={"topic": topic}, ns=ns))
        return page.elements[0] if page.elements else None

    async def put(
        self,
        topic: str,
        *,
        rate: float | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        key_rate: float | None = None,
        key_burst: int | None = None,
        key_concurrency: int | None = None,
        namespace: str | None = None,
    ) -> TopicLimitsView:
        """Hand out `rate` items a second at most, `burst` of them at once (by default as many as a second has) and
        no more than `concurrency` at a time; `key_rate`, `key_burst` and `key_concurrency` are the same for the
        items of each `fairness_key`. What is left out is taken away: `put(topic)` leaves no limit.

        In force everywhere within about a second.
        """
        given = verbs.present(
            rate=rate,
            burst=burst,
            concurrency=concurrency,
            key_rate=key_rate,
            key_burst=key_burst,
            key_concurrency=key_concurrency,
        )
        body = {"topic": topic, **given}
        ns = namespace or self._client.namespace
        parse = TopicLimitsView.model_validate
        return await self._client._send(verbs.call(verbs.TOPIC_LIMITS_PUT, parse, body=body, ns=ns))

    async def unthrottle(
        self, topic: str, *, key: str | None = None, namespace: str | None = None
    ) -> TopicLimitsView:
        """End what handlers have throttled (`raise Throttled(...)`): the topic and all its keys, or one `key`.

        In force everywhere within about a second.
        """
        body = {"topic": topic, **verbs.present(key=key)}
        ns = namespace or self._client.namespace
        parse = TopicLimitsView.model_validate
        return await self._client._send(verbs.call(verbs.TOPIC_UNTHROTTLE, parse, body=body, ns=ns))
