"""A client of the lock of before Redis 2.6.12, as services still have it: SETNX, GET and GETSET to take it, WATCH and MULTI to
give it back. Standard library only. Told by lines what to do; one answer per line, and while it contends one per event."""

import random
import socket
import sys
import time


class Redis:
    """As little of a client as the lock needs."""

    def __init__(self, host, port):
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb")

    def ask(self, *words):
        words = [str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def reply(self):
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.replies.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        return rest.decode()


class Lock:
    """The old lock. Times are whole ms since 1970; `ahead` is what this client's clock is wrong by."""

    def __init__(self, redis, name, ahead):
        self.redis, self.name, self.ahead = redis, f"{name}_lock", ahead
        self.ends = None
        self.seen = None
        self.overwrote = None

    def now(self):
        return time.time_ns() // 1_000_000 + self.ahead

    def setnx(self, lease):
        ends = self.now() + lease
        if self.redis.ask("SETNX", self.name, ends) == 1:
            self.ends = ends
            return "taken"
        return "busy"

    def get(self):
        self.seen = self.redis.ask("GET", self.name)
        if self.seen is None:
            return "vanished"
        return "expired" if int(self.seen) < self.now() else "busy"

    def getset(self, lease):
        ends = self.now() + lease
        sent = time.time_ns() // 1000
        old = self.redis.ask("GETSET", self.name, ends)
        if old is None or old == self.seen:
            self.ends = ends
            return "taken"
        # Somebody was faster, and has its time overwritten.
        self.overwrote = (sent, time.time_ns() // 1000, int(old), ends)
        return "late"

    def attempt(self, lease):
        while True:
            if self.setnx(lease) == "taken":
                return "taken"
            found = self.get()
            if found == "busy":
                return "busy"
            if found == "expired":
                if random.random() < 0.3:
                    time.sleep(random.random() / 1000)
                return self.getset(lease)

    def release(self):
        self.redis.ask("WATCH", self.name)
        seen = self.redis.ask("GET", self.name)
        if seen != str(self.ends):
            self.redis.ask("UNWATCH")
            return "not-own"
        if self.ends < self.now():
            self.redis.ask("UNWATCH")
            return "expired"
        self.redis.ask("MULTI")
        self.redis.ask("DEL", self.name)
        return "released" if self.redis.ask("EXEC") is not None else "changed"


def contend(redis, lock, counter, rounds):
    """Takes the lock again and again, and says from when to when it was inside: `hold <from µs> <to µs> <its time in ms>`. Now and then
    it stays longer than its time, or dies without giving the lock back."""
    while True:
        kind = random.random()
        lease = random.randint(10, 40) if kind < 0.1 else random.randint(150, 250)
        stay = random.randint(20, 60) / 1000 if kind < 0.06 else random.random() / 500
        dies = 0.06 <= kind < 0.1
        while lock.attempt(lease) != "taken":
            if lock.overwrote:
                say("overwrote", *lock.overwrote)
                lock.overwrote = None
            time.sleep(random.random() / 500)
        entered = time.time_ns() // 1000
        time.sleep(stay)
        left = time.time_ns() // 1000
        how = "died" if dies else lock.release()
        say("hold", entered, left, lock.ends, how)
        if redis.ask("INCR", counter) >= rounds:
            return "done"


def say(*words):
    print(*words, flush=True)


host, port, name, ahead = sys.argv[1:5]
redis = Redis(host, port)
lock = Lock(redis, name, int(ahead))
say("ready")
for line in sys.stdin:
    word, *rest = line.split()
    say(
        {
            "setnx": lambda: lock.setnx(int(rest[0])),
            "get": lock.get,
            "getset": lambda: lock.getset(int(rest[0])),
            "try": lambda: lock.attempt(int(rest[0])),
            "release": lock.release,
            "contend": lambda: contend(redis, lock, rest[0], int(rest[1])),
        }[word]()
    )
