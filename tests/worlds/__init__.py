"""Random worlds: both services under every verb at once, judged by what clients were told and nothing else.

A world is a few tenants, two processes of each service on real shards, a clock that is moved, and a seed. Time
stands still within a round, in which several verbs go at once; between rounds it goes on, by a thousandth of a
second or by minutes. Now and then a process is killed, an answer lost, a backend ended, a shard added, drained or
removed.
In the end everything is let go and acked, and the oracles read what was sent and answered, and what the services
show.

A seed gives the same choices in the same order; how calls of one round meet is up to the machine. `make worlds`
runs worlds for some minutes; seeds that failed once are kept in `seeds.txt`: `make check` runs all of them.

Where to look

    world            rounds, the way to the end, what a failure prints
    registry         what a verb is: its weight, when it can be, what it does and what the oracles learn
    queue_verbs      verbs of items, topics and namespaces
    operation_verbs  what is done to many items at once
    dag_verbs        verbs that build DAGs
    scenes           several verbs in their order on a few nodes, items or runs: of DAGs that expand
                     (`dag_scenes`), are steered (`steering_scenes`) or wait for what falls due (`late_scenes`), of
                     items (`item_scenes`), of runs (`run_scenes`), of tenants who name what is another's
                     (`stranger_scenes`)
    control_verbs    verbs that steer them
    value_verbs      verbs of values that a DAG's jobs share
    schedule_verbs   verbs of schedules
    run_verbs        verbs of runs of workflows, and a worker that replays their code
    limit_verbs      verbs of limits and throttles; `limit_scenes` have topics of their own
    token_verbs      verbs of callers who may not; `tokens` is their file
    forged_verbs     verbs of callers who say what is not theirs to say
    faults           what befalls processes and shards
    facts, dag_facts what clients know of items and of DAGs
    value_facts      what they wrote and read of values, and what that may not show
    schedule_facts   what they asked of schedules, and what their ticks may not show
    run_facts        what they asked of runs, and what those may not show
    queue_oracle     what no history of items may show
    dag_oracle       what no history of DAGs may show; `replay` reads their events
    leftovers        what no world may leave behind
    stage            the processes, their shards and their clock, inside this loop
    machines         the processes' machines, whose clocks differ
    soak             real processes for long, at a rate that lanes keep up
    lanes            clients beside the world, whose calls wait for no round: of items (`queue_lane`), of DAGs
                     (`dag_lane`)
    installation     real processes in their place, and `nemesis`, which hurts them
    wire             calls, answers, and connections that are cut

A feature joins by a verb: a function with `@verb(weight)` that makes a call and notes in the facts what was sent
and answered, and by what the oracles then say of it.
"""
