// What to do when an alert fires. Made from docs/operations.md by `make runbooks`.

export const RUNBOOKS = {
 "HeadgateDown": {
  "severity": "page",
  "fires": "up{job=~\"headgate-.*\"} == 0, for 2m",
  "text": "A process has not answered for two minutes. Others serve meanwhile, and take over its shards. Its log, or its supervisor's, says why it went; start it again."
 },
 "HeadgateShardAway": {
  "severity": "page",
  "fires": "max by (job, shard) (headgate_shard_breaker_state) == 2, for 1m",
  "text": "Statements of a shard get no answer: calls to it are refused at once, with nothing done, and others go on. Look at its Postgres (up? connections? disk?); `/ui` has each process' own view on the shard's page. It closes by itself."
 },
 "HeadgateShardUnowned": {
  "severity": "page",
  "fires": "sum by (job, shard) (headgate_shard_owned) == 0, for 1m",
  "text": "No process has taken the shard: lost leases, delays and deadlines there stand. Is a process up that can reach it? With Redis away, one that had it keeps it."
 },
 "HeadgateSweepStands": {
  "severity": "page",
  "fires": "time() - max by (shard) (headgate_sweeper_last_run_timestamp_seconds) > 60, for 1m",
  "text": "Lost leases are not looked for: items of dead workers stay with them. Look at `headgate_duty_failed_rounds` and the owner's log; restart the owner if it hangs."
 },
 "HeadgateDutyFails": {
  "severity": "page",
  "fires": "max by (job, duty, shard) (headgate_duty_failed_rounds) > 20, for 5m",
  "text": "See \"`headgate_duty_failed_rounds` grows\" above: the log line `background step failed` has the traceback."
 },
 "HeadgateTokensUnread": {
  "severity": "page",
  "fires": "max by (job) (headgate_tokens_file_unread_seconds) > 0 or max by (job) (headgate_tokens_lines_refused) > 0",
  "text": "Put the tokens file back, or mend the line that the log names, in one step (`mv`)."
 },
 "HeadgateOverloaded": {
  "severity": "ticket",
  "fires": "sum by (job, urgency) (rate(headgate_shed_total[5m])) > 0, for 5m",
  "text": "More comes than can be done, and the least urgent is refused. See \"calls answer 503 `overloaded`\" above: Postgres or the process is short; add the one that is."
 },
 "HeadgateFaults": {
  "severity": "ticket",
  "fires": "sum by (job, route) (rate(headgate_http_request_seconds_count{status=\"500\"}[10m])) > 0",
  "text": "A call got a 500: a fault of the service, never of the caller. The log has the traceback at that time; please report it."
 },
 "HeadgateSlowPostgres": {
  "severity": "ticket",
  "fires": "histogram_quantile(0.99, sum by (job, shard, le) (rate(headgate_shard_query_seconds_bucket[5m]))) > 1, for 10m",
  "text": "A shard's statements are slow. Its page says why: locks waited for, the oldest transaction, what takes the most time. Storage, vacuum, a neighbour."
 },
 "HeadgateLongTransaction": {
  "severity": "ticket",
  "fires": "max by (shard) (headgate_shard_oldest_xact_age_seconds) > 900, for 5m",
  "text": "Somebody's transaction keeps dead rows from being removed, and scans get longer. The shard's page names the session; end it (`pg_terminate_backend`), and mind dumps and forgotten shells."
 },
 "HeadgateItemsWait": {
  "severity": "ticket",
  "fires": "max by (namespace, topic) (headgate_oldest_ready_age_seconds) > 900, for 5m",
  "text": "`headgate why TOPIC`: it is paused, nobody asks for it, a limit holds it back, or its consumers are too few: start more."
 },
 "HeadgateItemsDie": {
  "severity": "ticket",
  "fires": "sum by (namespace, topic) (delta(headgate_items{state=\"dead\"}[15m])) > 0",
  "text": "`headgate dead` groups them by error. Mend the cause, then `headgate redrive --topic TOPIC --error ERROR`; nodes of DAGs with `headgate dag retry DAG`."
 },
 "HeadgateItemsDieOnShard": {
  "severity": "ticket",
  "fires": "sum by (shard) (increase(headgate_dead_total[15m])) > 0 unless on (shard) sum by (shard) (delta(headgate_items{state=\"dead\"}[15m])) > 0",
  "text": "The same, of topics that are not among those that hold most (`HEADGATE_QUEUE_METRICS_TOPICS_MAX`): `headgate dead` in each namespace."
 },
 "HeadgateStartsLate": {
  "severity": "ticket",
  "fires": "histogram_quantile(0.99, sum by (shard, le) (rate(headgate_schedule_to_start_seconds_bucket[10m]))) > 300, for 10m",
  "text": "What is handed out has waited for minutes, in whatever topic: consumers are too few for what comes. `headgate top`, and `headgate_topic_work` by topic."
 },
 "HeadgateDagsFail": {
  "severity": "ticket",
  "fires": "sum by (shard) (delta(headgate_dags{state=\"failed\"}[15m])) > 0",
  "text": "`headgate dag list --state failed`, then `headgate why DAG`: which node, and why. `headgate dag retry DAG` runs again what failed."
 },
 "HeadgateLeasesRunOut": {
  "severity": "ticket",
  "fires": "sum(rate(headgate_lease_expired_total[15m])) > 0.05 * sum(rate(headgate_dequeued_total[15m])), for 15m",
  "text": "Workers die, hang, or take longer than `lease_s` without extending it: jobs then run twice. `headgate workers --gone`; longer leases, or `Worker`, which extends them."
 },
 "HeadgateOutboxGrows": {
  "severity": "page",
  "fires": "min_over_time(headgate_outbox_rows[5m]) > 1000, for 5m",
  "text": "The DAG service cannot tell the queue what is to be released: is the queue service up, and does it know the token? Nothing is lost; it is sent when it can be."
 },
 "HeadgateCompletionGivenUp": {
  "severity": "ticket",
  "fires": "sum by (shard) (increase(headgate_completions_total{result=~\"given_up|unreadable\"}[1h])) > 0",
  "text": "An end could not be applied to its DAG. `python -m audit` says which node; `python -m audit repair --yes` mends what it can."
 },
 "HeadgateDrift": {
  "severity": "ticket",
  "fires": "max by (kind) (headgate_audit_findings) > 0",
  "text": "The two sides differ. `python -m audit` names it, `python -m audit repair` says what it would mend; the table above says how."
 },
 "HeadgateAuditOld": {
  "severity": "ticket",
  "fires": "time() - max(headgate_audit_last_run_timestamp_seconds) > 7200",
  "text": "The audit's cron job has not ended within two hours: its own log."
 }
};
