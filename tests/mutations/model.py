"""What a mutation is, and how it is planted."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutation:
    """One guard taken out.

    `guards` says what holds while it is there. `text` occurs once in the file at `path` and becomes `becomes`.
    `tests` are paths relative to `tests/`, with or without `::name`.
    """

    name: str
    guards: str
    path: str
    text: str
    becomes: str
    tests: tuple[str, ...]

    def plant(self, tree: Path) -> str:
        """Write the changed file into the tree; what the file was before.

        Raises:
            ValueError: the text does not occur exactly once.
        """
        file = tree / self.path
        whole = file.read_text()
        if whole.count(self.text) != 1:
            raise ValueError(f"{self.name}: its text occurs {whole.count(self.text)} times in {self.path}")
        file.write_text(whole.replace(self.text, self.becomes))
        return whole
