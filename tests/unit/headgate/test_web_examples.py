"""The examples in web frameworks, with their jobs run in memory."""

import httpx
from django.test import Client as Browser

from examples.web import django_app, fastapi_app
from headgate import new_id


async def test_fastapi_starts_jobs_and_tells_of_them() -> None:
    transport = httpx.ASGITransport(app=fastapi_app.api)
    with fastapi_app.jobs.testing() as tests:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            made = await http.post("/thumbnails", params={"src": "a"})
            assert made.status_code == 202
            tests.run()
            shown = await http.get(f"/thumbnails/{made.json()['job']}")
            assert shown.json() == {"status": "succeeded", "result": "a@640"}
            assert (await http.get(f"/thumbnails/{new_id(0)}")).status_code == 404
            album = await http.post("/albums", json={"title": "t", "sources": ["a", "b"]})
            assert album.json() == {"album": "t: a@640, b@640"}


def test_django_sends_a_mail_once_it_has_committed() -> None:
    with django_app.jobs.testing() as tests:
        browser = Browser()
        for _ in range(2):
            assert browser.get("/sign-up", {"mail": "ada@example.org"}).json() == {"welcome": "ada@example.org"}
        tests.run()
        (job,) = tests.ran
        assert job.dag is not None
        assert browser.get(f"/mails/{job.dag.id}").json() == {"status": "succeeded"}
