#!/usr/bin/env python3
"""Adds one task with redis-py: REDIS_URL=redis://HOST:PORT enqueue.py USER"""
import json
import os
import sys

import redis

user = sys.argv[1]
broker = redis.Redis.from_url(os.environ["REDIS_URL"])
entry = broker.xadd("qw:{mail}:tasks", {
    "task_id": f"welcome-{user}",   # the same id again is the same task
    "kind": "welcome",
    "payload": json.dumps({"user": user}),
    "lock_key": f"mailbox:{user}",  # one task at a time for this mailbox
    "max_attempts": 3,
    "timeout_ms": 30_000,
})
print(entry.decode())
