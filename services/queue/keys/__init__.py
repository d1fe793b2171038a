"""Keys of ready items that a process has read ahead: priority, time and id, in the order of their delivery.

Filled by enqueues, by what becomes ready, and by looks at the shards; emptied by dispatch. Nothing is decided
here: a key may be stale, and losing all of them in a crash costs a new look.

key_buffer       keys of ready items of one topic and shard, in order
key_cache        one topic's keys at one process, over its shards
priority_shares  minimum shares of priorities
scan_floor       where the living rows of an index begin
"""
