"""Run C after A and B: the example of the README.

python -m examples.quickstart             # against the services of `make run`
"""

from headgate import Client, Dag, Job, Worker

client = Client()
worker = Worker(client)


@worker.task("count", slots=2)
def count(job: Job) -> int:
    return len(job.payload.split())


@worker.task("add")
def add(job: Job) -> int:
    worker.stop()
    return sum(job.inputs.values())


dag = Dag("quickstart")
a = dag.node("a", "count", payload="to be or not to be")
b = dag.node("b", "count", payload="that is the question")
dag.node("c", "add", after=[a, b], pass_outputs=True)
handle = client.submit(dag)
worker.main()
print(handle.wait().state, handle.node("c").output)  # succeeded 10
