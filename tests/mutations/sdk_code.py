"""Guards in the SDK beside its workers: how functions of apps end, what a client leaves for others."""

from tests.mutations.model import Mutation

_VALUES = "unit/headgate/app/test_app_values.py"
_HTTP = "unit/headgate/http/test_http1.py"
_HANG_UP = "unit/headgate/worker/test_hang_up.py"
_STEPS = "unit/headgate/workflow/test_driver_steps.py"
_BATCHES = "headgate/_app/batches.py"
_RUNNING = "headgate/_app/running.py"

MUTATIONS = (
    Mutation(
        "app-group-failed",
        "the mark that a failed group of tasks leaves is not taken for the worker's cancel",
        _RUNNING,
        "(job.is_cut_off() and not is_of(error, Fail))",
        "not is_of(error, Fail)",
        (f"{_VALUES}::test_what_a_job_raises_ends_it_at_once_also_where_a_group_in_it_has_failed",),
    ),
    Mutation(
        "app-group-late",
        "a job that is too late is told so, also behind a group that has failed",
        _RUNNING,
        " and (job.is_cut_off() or not is_late)",
        "",
        (f"{_VALUES}::test_what_a_job_raises_ends_it_at_once_also_where_a_group_in_it_has_failed",),
    ),
    Mutation(
        "app-batch-retry",
        "a batch that asks for another attempt has it without `max_attempts`, too",
        _BATCHES,
        "is_of(error, Raised) and not waiting.tries",
        "is_of(error, Retry) and not waiting.tries",
        (f"{_VALUES}::test_a_batch_that_asks_for_another_attempt_has_it_whatever_it_says",),
    ),
    Mutation(
        "app-error-unseen",
        "an error that may not be looked at is told by its name",
        "headgate/_app/failures.py",
        "    except BaseException:  # of a class of the user's: what it is made of may not be asked for\n",
        "    except ArithmeticError:\n",
        (f"{_VALUES}::test_an_error_that_may_not_be_looked_at_ends_its_job_and_no_other",),
    ),
    Mutation(
        "waiting-files",
        "calls whose answers are held back leave files for others",
        "headgate/_http/http1.py",
        "max(1, min(WAITING_MAX, files // 2))",
        "WAITING_MAX",
        (f"{_HTTP}::test_calls_that_wait_leave_files_for_others",),
    ),
    Mutation(
        "worker-hung-up-reset",
        "a connection that was reset does not keep others from being hung up on",
        "headgate/_http/http1.py",
        "        except OSError:  # it was reset",
        "        except ArithmeticError:  # it was reset",
        (f"{_HANG_UP}::test_a_connection_that_was_reset_meanwhile_does_not_keep_others_from_being_hung_up_on",),
    ),
    Mutation(
        "step-given-up",
        "what a step makes of its cancel is nobody's",
        "headgate/workflow/driving/driver.py",
        "    step.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())\n",
        "",
        (f"{_STEPS}::test_what_a_step_makes_of_its_cancel_is_not_logged_by_asyncio",),
    ),
)
