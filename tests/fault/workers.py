"""Worker processes, and what may answer in their place."""
import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time

START_LIMIT_S = 120


def open_counts(pid):
    """How many descriptors and threads a process has, without the files that say whose a core is: the first to come has
    those."""
    names = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            names.append(os.path.basename(os.readlink(link)))
    return {"descriptors": sum(not name.startswith("core-") for name in names),
            "threads": len(os.listdir(f"/proc/{pid}/task"))}


class Worker:
    """`fastdecode worker` on a socket, which may be killed, stopped and started again."""

    def __init__(self, program, folder, name, kv_gib):
        self._program, self._kv_gib = program, kv_gib
        self.path = pathlib.Path(folder) / name
        self.log_path = self.path.with_suffix(".log")
        self._process = None
        self.stopped = False

    @property
    def endpoint(self):
        return f"unix:{self.path}"

    @property
    def pid(self):
        return self._process.pid

    @property
    def runs(self):
        return self._process is not None and self._process.poll() is None

    async def start(self, *more):
        """Starts it, and returns when it listens."""
        command = ["setpriv", "--pdeathsig", "KILL", self._program, "worker", "--listen", self.endpoint, "--kv-gib",
                   str(self._kv_gib), "--poll", "yield", *more]
        with open(self.log_path, "ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_LIMIT_S
        while b"listening on " not in self.log_path.read_bytes()[begin:]:
            if not self.runs or time.monotonic() > until:
                raise RuntimeError(f"{' '.join(map(str, command))} does not listen:\n{self.messages()}")
            await asyncio.sleep(0.01)

    def kill(self):
        self._process.kill()
        self._process.wait()
        self.stopped = False

    def stop(self):
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False

    def messages(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    @contextlib.asynccontextmanager
    async def refused(self, how, other_model):
        """While this lasts, whoever connects to the socket of the killed worker is refused."""
        if how == "other model":
            await self.start("--model", str(other_model))
            yield
            self.kill()
            return
        self.path.unlink(missing_ok=True)
        visitors = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.setblocking(False)
            door.bind(str(self.path))
            door.listen()
            task = asyncio.create_task(_refuse(door, how, visitors))
            yield
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for visitor in visitors:
            visitor.close()
        self.path.unlink(missing_ok=True)


async def _refuse(door, how, visitors):
    """Closes at once, says what makes no sense, or says nothing to who comes."""
    while True:
        visitor, _ = await asyncio.get_running_loop().sock_accept(door)
        visitors.append(visitor)
        if how == "garbage":
            visitor.send(os.urandom(100))
        if how == "closes":
            visitor.close()
