"""Another kind of client: redis-py's Lock, told by lines what to do. One answer per line."""

import sys

try:
    import redis
    from redis.exceptions import LockError, LockNotOwnedError
except ImportError:
    sys.exit("redis-py is missing: run ./tests/install-servers")

url, name = sys.argv[1:3]
client = redis.Redis.from_url(url)
lock = client.lock(name, timeout=60, sleep=0.002, thread_local=False)


def release():
    try:
        lock.release()
    except LockNotOwnedError:
        return "not-owned"
    except LockError:
        return "not-held"
    return "released"


def count(times):
    """Adds one so often, in two commands that only the lock makes one."""
    for _ in range(times):
        with client.lock(name, timeout=60, sleep=0.002):
            seen = int(client.get("counter") or 0)
            client.set("counter", seen + 1)
    return "counted"


print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    answer = {
        "try": lambda: "taken" if lock.acquire(blocking=False) else "busy",
        "wait": lambda: "taken" if lock.acquire(blocking_timeout=30) else "busy",
        "owned": lambda: "owned" if lock.owned() else "not-owned",
        "extend": lambda: "extended" if lock.reacquire() else "not-owned",
        "release": release,
        "count": lambda: count(int(rest[0])),
    }[word]()
    print(answer, flush=True)
