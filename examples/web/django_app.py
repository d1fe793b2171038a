"""Jobs of a Django project, in one file: a form is answered at once, and the mail goes out later.

python -m examples.web.django_app runserver
headgate worker examples.web.django_app:jobs

In a project of its own, `jobs` is a module beside `models`; a worker calls `django.setup()` before it uses those.
"""

import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from headgate import App

if not settings.configured:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        ALLOWED_HOSTS=["*"], DEBUG=False, ROOT_URLCONF=__name__, SECRET_KEY="x", DATABASES={"default": database}
    )
    django.setup()

jobs = App("example-django")


@jobs.job(max_attempts=5, backoff={"base_s": 10})
def send_welcome(address: str) -> str:
    return f"sent to {address}"


def sign_up(request: HttpRequest) -> JsonResponse:
    address = request.GET["mail"]
    with transaction.atomic():
        # User.objects.create(...); the mail goes out only if that is committed, and once for each address
        transaction.on_commit(lambda: send_welcome.enqueue(address, key=address))
    return JsonResponse({"welcome": address})


def mails(_: HttpRequest, job_id: str) -> JsonResponse:
    return JsonResponse({"status": send_welcome.job(job_id).status()})


urlpatterns = [path("sign-up", sign_up), path("mails/<str:job_id>", mails)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
