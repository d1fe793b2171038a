"""Contacts are imported in parts, each a job; one that runs twice, its worker killed, writes the same again."""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headgate import App

app = App("example-contact-import")
FOLDER = Path(tempfile.gettempdir()) / "headgate-contacts"


@dataclass
class Contact:
    name: str
    mail: str


@dataclass
class Imported:
    stored: int
    refused: list[str]


@app.job
def split(count: int, size: int) -> list[list[Contact]]:
    rows = [Contact(f"User {n}", f"user{n}@example.org" if n % 25 else "no mail") for n in range(count)]
    return [rows[start : start + size] for start in range(0, count, size)]


@app.job(slots=2)
def store(part: list[Contact]) -> Imported:
    time.sleep(0.1)
    good = [contact for contact in part if "@" in contact.mail]
    for contact in good:
        (FOLDER / contact.mail).write_text(json.dumps({"name": contact.name}))
    return Imported(len(good), [contact.name for contact in part if contact not in good])


@app.job
def summary(parts: list[Imported]) -> Imported:
    return Imported(sum(part.stored for part in parts), [name for part in parts for name in part.refused])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    flow = app.flow("contact import")
    parts = flow.map(store, split.call(500, size=20))
    total = flow.add(summary.call(parts))
    found = flow.start().result(total, timeout_s=120)
    print(
        f"imported {found.stored}, refused {len(found.refused)}; {len(list(FOLDER.iterdir()))} contacts are there"
    )


if __name__ == "__main__":
    main()
