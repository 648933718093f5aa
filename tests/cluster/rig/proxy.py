"""A TCP proxy that does to a connection what networks do: cut it after so many bytes, hand bytes over one by one, delay
them, flip one, stop one direction. One thread for all connections."""
import selectors
import socket
import threading
import time


class Pipe:
    """One direction of one connection."""

    def __init__(self, source, target, way):
        self.source, self.target, self.way = source, target, way
        self.held: list[tuple[float, bytes]] = []     # (when it may leave, bytes)
        self.passed = 0
        self.ended = False


class Proxy:
    """Listens on loopback and passes on to `target`. What it does is set by attributes, for connections that are there
    and those that come."""

    def __init__(self, target: str):
        self.target = tuple(target.rsplit(":", 1))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.delay = 0.0                 # seconds, each direction
        self.piece = 1 << 20             # bytes handed over at once
        self.blocked: set[str] = set()   # "up" (to the target), "down": nothing passes, nothing is lost
        self.cut_after: int | None = None   # bytes of one direction, then a reset; once
        self.flip_after: int | None = None  # the byte there has a bit flipped; once
        self.refuse = False              # connections are reset at once
        self.cuts = self.flips = 0
        self._pipes: list[Pipe] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset_all(self):
        """RST to both ends of everything that is there."""
        with self._lock:
            for pipe in list(self._pipes):
                self._break(pipe)

    def close(self):
        self._end.set()
        self._thread.join(5)
        self.reset_all()
        self.listener.close()

    # -- the thread --------------------------------------------------------------------------------------------------
    def _accept(self):
        try:
            near, _ = self.listener.accept()
        except OSError:
            return
        if self.refuse:
            reset(near)
            return
        try:
            far = socket.create_connection((self.target[0], int(self.target[1])), timeout=1)
        except OSError:
            reset(near)
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        with self._lock:
            self._pipes += [Pipe(near, far, "up"), Pipe(far, near, "down")]

    def _break(self, pipe):
        for other in [p for p in self._pipes if {p.source, p.target} == {pipe.source, pipe.target}]:
            self._pipes.remove(other)
        reset(pipe.source)
        reset(pipe.target)

    def _read(self, pipe, now):
        if pipe.ended or sum(len(b) for _, b in pipe.held) > 4 << 20:
            return
        try:
            data = pipe.source.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._break(pipe)
            return
        if not data:
            pipe.ended = True
            if not pipe.held:
                finish(pipe)
            return
        if self.flip_after is not None and pipe.passed + len(data) > self.flip_after >= pipe.passed:
            at = self.flip_after - pipe.passed
            data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:]
            self.flip_after, self.flips = None, self.flips + 1
        pipe.passed += len(data)
        pipe.held.append((now + self.delay, data))

    def _write(self, pipe, now):
        while pipe.held and pipe.held[0][0] <= now and pipe.way not in self.blocked:
            when, data = pipe.held[0]
            limit = self.piece
            if self.cut_after is not None:
                limit = min(limit, self.cut_after)
            try:
                sent = pipe.target.send(data[:limit]) if limit else 0
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._break(pipe)
                return
            if self.cut_after is not None:
                self.cut_after -= sent
                if self.cut_after <= 0:
                    self.cut_after, self.cuts = None, self.cuts + 1
                    self._break(pipe)
                    return
            if sent < len(data):
                pipe.held[0] = (when, data[sent:])
                if self.piece >= 1 << 16:
                    return
            else:
                pipe.held.pop(0)
        if pipe.ended and not pipe.held:
            finish(pipe)

    def _run(self):
        while not self._end.is_set():
            with selectors.DefaultSelector() as selector:
                selector.register(self.listener, selectors.EVENT_READ)
                with self._lock:
                    busy = False
                    for pipe in self._pipes:
                        busy = busy or bool(pipe.held)
                        if not pipe.ended:
                            try:
                                selector.register(pipe.source, selectors.EVENT_READ)
                            except (ValueError, KeyError):
                                pass
                ready = selector.select(0.0005 if busy else 0.05)
            now = time.monotonic()
            if any(key.fileobj is self.listener for key, _ in ready):
                self._accept()
            with self._lock:
                for pipe in list(self._pipes):
                    if pipe in self._pipes:
                        self._read(pipe, now)
                for pipe in list(self._pipes):
                    if pipe in self._pipes:
                        self._write(pipe, now)


def finish(pipe):
    try:
        pipe.target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def reset(end):
    """Closes with RST."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    except OSError:
        pass
    end.close()
