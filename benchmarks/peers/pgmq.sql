-- pgmq's own functions, as its clients call them.

-- name: pgmq_create(queue)
SELECT pgmq.create($1::text);

-- name: pgmq_send(queue, messages)
SELECT * FROM pgmq.send_batch($1::text, $2::jsonb[]);

-- name: pgmq_read(queue, visible_s, limit)
SELECT msg_id, message FROM pgmq.read($1::text, $2::int, $3::int);

-- name: pgmq_wait(queue, visible_s, limit)
SELECT msg_id, message FROM pgmq.read_with_poll($1::text, $2::int, $3::int, 5, 10);

-- name: pgmq_delete(queue, ids)
SELECT * FROM pgmq.delete($1::text, $2::bigint[]);

-- name: pgmq_purge(queue)
SELECT pgmq.purge_queue($1::text);
