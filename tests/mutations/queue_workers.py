"""Guards of what workers tell of themselves and of their jobs."""

from tests.mutations.model import Mutation

_PROGRESS = "contract/test_queue_progress.py"

MUTATIONS = (
    Mutation(
        "progress-kept",
        "an extension that tells nothing leaves what was told",
        "services/queue/leases/extend.py",
        "told=told.get(item_id, holding.told)",
        "told=told.get(item_id)",
        (f"{_PROGRESS}::test_what_the_holder_told_last_is_shown_with_the_item",),
    ),
    Mutation(
        "progress-told-again",
        "progress that could not be told goes with the next extension",
        "headgate/_leases.py",
        "                job.is_untold = True\n",
        "                job.is_untold = False\n",
        ("unit/headgate/test_keepers.py::test_progress_that_could_not_be_told_is_told_with_the_next_extension",),
    ),
)
