"""Whether the host itself stood still. Bars are of the product; a machine that is paused, or gives nobody a core, is not. A thread sleeps a
moment at a time and keeps by how much it overslept; from what is measured, the overlap with that is taken off, and nothing else."""
import threading
import time

NAP = 0.01      # seconds
PIECE = 0.02    # oversleeping by less is everyday
EPOCH = 0.2     # a pause from which on a healthy member may be late enough to be taken for dead


class Meter:
    def __init__(self):
        self.pauses: list[tuple[float, float]] = []    # (from, to)
        self.seen = time.monotonic()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            due = time.monotonic() + NAP
            time.sleep(NAP)
            now = time.monotonic()
            if now - due > PIECE:
                self.pauses.append((due, now))
            self.seen = now

    def overlaps(self, began, ended):
        """Of each pause what lies in that time; all of it is known, however late the meter comes to tell."""
        deadline = time.monotonic() + 10
        while self.seen < ended and time.monotonic() < deadline:
            time.sleep(NAP)
        shared = (min(b, ended) - max(a, began) for a, b in list(self.pauses))
        return [s for s in shared if s > 0]

    def less(self, began, ended, what):
        """The seconds between, less those that the host stood still; says so where there were any."""
        paused = sum(self.overlaps(began, ended))
        if paused > 0:
            self.tell(f"stood still for {paused:.2f} of {ended - began:.2f} s, which do not count: {what}")
        return ended - began - paused

    def since(self, began, what):
        return self.less(began, time.monotonic(), what)

    def longest(self, gaps, what):
        """The longest of (end, seconds), each less what the host stood still."""
        if not gaps:
            return 0.0
        first, last = min(at - g for at, g in gaps), max(at for at, _ in gaps)
        self.overlaps(first, last)
        pauses = [(a, b) for a, b in list(self.pauses) if b > first and a < last]
        net = [(g - sum(max(0.0, min(b, at) - max(a, at - g)) for a, b in pauses), at, g) for at, g in gaps]
        best, at, g = max(net)
        longest = max(g for _, g in gaps)
        if longest - best > 0:
            self.tell(f"stood still for {longest - best:.2f} s of the longest gap, {longest:.2f} s, which do not count: {what}")
        return best

    def tell(self, text):
        print(f"    host: {text}", flush=True)


METER = Meter()


def same_epoch(rig, window, what):
    """The epoch is the same after `window`. Again, at most 3 times, where it is not and the host stood still for longer than a member may be
    late."""
    for more in (2, 1, 0):
        epoch, began = rig.status()["epoch"], time.monotonic()
        window()
        after, worst = rig.status()["epoch"], max(METER.overlaps(began, time.monotonic()), default=0.0)
        if after == epoch:
            return None
        if worst <= EPOCH or not more:
            return f"epoch {what}: {epoch} before, {after} after; the host stood still for at most {worst:.2f} s in one piece"
        METER.tell(f"stood still for {worst:.2f} s in one piece, the epoch changed from {epoch} to {after}: once more, {what}")
        rig.wait(experts=rig.n_experts)
    return None
