"""Who a token is, and that no token stands in an address."""

import pytest

from shared.http.access import make_token
from tests.support.apps import Service


async def test_without_tokens_everything_but_the_dag_scope_is_allowed(queue_service: Service) -> None:
    answer = await queue_service.client.get("/v1/me")
    assert answer.json() == {
        "token": None,
        "scopes": ["admin", "consume", "enqueue", "ops"],
        "namespaces": None,
        "history_s_max": 3_600,
    }


@pytest.mark.parametrize("place", ["?token={}", "?topic={}&limit=1", "/{}", "?a=%68g_{}"])
async def test_a_token_in_an_address_is_refused(queue_service: Service, dag_service: Service, place: str) -> None:
    token, _ = make_token(["*"], ["ops"], None)
    given = place.format(token if "%68" not in place else token.removeprefix("hg_"))
    for service in (queue_service, dag_service):
        for path in ("/v1/namespaces/default/items", "/ui", "/ui/queue/v1/me", "/ui/dag/v1/me", "/livez"):
            answer = await service.client.get(path + given)
            assert (answer.status_code, answer.json()["code"]) == (400, "token_in_url"), path
            assert token not in answer.text


async def test_what_only_looks_like_a_token_is_taken(queue_service: Service) -> None:
    answer = await queue_service.client.get("/v1/namespaces/default/items", params={"topic": "hg_mail_out"})
    assert answer.status_code == 200
