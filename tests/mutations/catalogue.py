"""All mutations, in the order in which they are listed."""

from tests.mutations import queue_statements
from tests.mutations.model import Mutation

MUTATIONS: tuple[Mutation, ...] = (*queue_statements.MUTATIONS,)
