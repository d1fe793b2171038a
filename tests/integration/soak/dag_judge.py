"""What DAGs must not show: each is held against its plan, and every delivery against what was said before it."""

from collections.abc import Iterator, Mapping, Sequence

from tests.integration.soak.dag_load import Node, Plan, Step

Steps = Mapping[tuple[str, str], Sequence[Step]]


def judge(plans: Sequence[Plan], steps: Steps) -> list[str]:
    """Every violation, as a sentence."""
    return [fault for plan in plans for look in (_ends, _deliveries, _finality) for fault in look(plan, steps)]


def _ends(plan: Plan, steps: Steps) -> Iterator[str]:
    """Every node ended as its plan says, and so did the DAG."""
    state = plan.shown.get("state")
    if state is None:
        yield f"{plan.name} ({plan.id}) did not end"
        return
    if state == "cancelled":
        if not plan.is_cancelled:
            yield f"{plan.name} ({plan.id}) was cancelled by nobody"
        if unfinished := [key for key, of in plan.states.items() if of in ("blocked", "released")]:
            yield f"{plan.name} ({plan.id}) is cancelled, but for {unfinished}"
        return
    expected = plan.ends(2 if plan.was_retried else 1)
    if plan.states != expected:
        other = {key: (plan.states.get(key), end) for key, end in expected.items() if plan.states.get(key) != end}
        yield f"{plan.name} ({plan.id}) ended with (found, expected) {other or sorted(plan.states)}"
    if state != ("failed" if "failed" in expected.values() else "succeeded"):
        yield f"{plan.name} ({plan.id}) ended {state}"
    counted = {of: count for of, count in plan.shown["nodes"].items() if of != "total" and count}
    if sum(counted.values()) != len(plan.nodes) or any(
        count != sum(found == of for found in plan.states.values()) for of, count in counted.items()
    ):
        yield f"{plan.name} ({plan.id}) counts {counted}"


def _deliveries(plan: Plan, steps: Steps) -> Iterator[str]:
    """Nothing ran early, nothing that may not, and each generation as one item."""
    phases = [plan.ends(1), plan.ends(2)] if plan.was_retried else [plan.ends(1)]
    for node in plan.nodes.values():
        found = [step for step in steps.get((plan.id, node.key), ()) if step.what == "delivered"]
        if found and all(ends[node.key] == "skipped" for ends in phases):
            yield f"{plan.name}/{node.key} is to be skipped, and ran"
        if not plan.was_retried and any(step.generation != 1 for step in found):
            yield f"{plan.name}/{node.key} ran in another generation, and nobody retried it"
        for generation in {step.generation for step in found}:
            items = {step.item for step in found if step.generation == generation}
            if len(items) > 1:
                yield f"{plan.name}/{node.key} is {len(items)} items in generation {generation}: {items}"
        for step in found:
            if reason := _early(plan, node, step, steps, phases):
                yield f"{plan.name}/{node.key} ({plan.id}) ran before {reason}"


def _early(plan: Plan, node: Node, step: Step, steps: Steps, phases: Sequence[Mapping[str, str]]) -> str:
    if node.waits and (node.resolved_s is None or node.resolved_s > step.done):
        return "its external was resolved"
    said = {
        up: {word.what for word in steps.get((plan.id, up), ()) if word.sent < step.done} for up in node.upstream
    }
    above = [up for up in node.upstream if up not in node.moot]
    acked = [up for up in node.upstream if "acked" in said[up]]
    if node.trigger == "any_succeeded":
        return "" if acked else f"any of {node.upstream} was acked"
    for up in above:
        may_skip = any(ends[up] == "skipped" for ends in phases)
        match node.trigger:
            case "all_succeeded":
                ended = up in acked
            case "none_failed":
                ended = up in acked or may_skip
            case _:
                ended = up in acked or "failed" in said[up] or may_skip
        if not ended:
            return f"{up} had ended"
    return ""


def _finality(plan: Plan, steps: Steps) -> Iterator[str]:
    """Nothing comes of a DAG whose cancel was final."""
    if plan.cancelled_s is None or plan.shown.get("state") != "cancelled":
        return
    for node in plan.nodes.values():
        for step in steps.get((plan.id, node.key), ()):
            if step.what == "delivered" and step.sent > plan.cancelled_s:
                yield f"{plan.name}/{node.key} ({plan.id}) came after the DAG's cancel was final"
