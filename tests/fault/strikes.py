"""Carries out the faults of a cycle's plan, and notes what struck whom and when."""
import asyncio
import dataclasses
import time


@dataclasses.dataclass
class Strike:
    """A fault that has struck."""
    fault: object
    pid: int  # of the worker
    begin: float  # time.monotonic()
    end: float = 0  # the worker goes on or is started again; 0: not yet
    during: tuple = ()  # "prefill", "full queue", "recovery"

    def seconds(self, now):
        return (self.end or now) - self.begin


class Strikes:
    """The faults of one cycle, each a task. The cycle tells how many tokens have come and which homes were lost."""

    def __init__(self, plan, workers, other_model, expected_tokens, look):
        """`look`: what an engine is doing just now of "prefill", "full queue" and "recovery"."""
        self._plan, self._workers, self._other_model, self._look = plan, workers, other_model, look
        self._expected_tokens = expected_tokens
        self._changed = asyncio.Event()  # more tokens, or a loss
        self._over = asyncio.Event()
        self.tokens = 0
        self._losses = 0
        self.struck = []
        self._taken = set()  # workers that a fault has killed and will start again
        self._tasks = [asyncio.create_task(self._run(fault)) for fault in plan.faults]

    def note_tokens(self, count):
        self.tokens += count
        self._changed.set()

    def note_loss(self):
        self._losses += 1
        self._changed.set()

    async def end(self):
        """Faults that have not struck do not any more, and all workers go on."""
        self._over.set()
        self._changed.set()
        await asyncio.gather(*self._tasks)

    async def _run(self, fault):
        if not await self._moment(fault):
            return
        worker = self._workers[fault.worker]
        if fault.worker in self._taken or (fault.kind == "stop" and worker.stopped):
            return
        strike = Strike(fault, worker.pid, time.monotonic(), during=self._look(self.tokens))
        self.struck.append(strike)
        try:
            if fault.kind == "stop":
                await self._stop(worker, fault.seconds)
            else:
                await self._kill(worker, fault)
        finally:
            strike.end = time.monotonic()

    async def _moment(self, fault):
        """Waits until it is time for the fault; False: it never is."""
        while not self._over.is_set():
            if fault.in_recovery >= 0:
                if self._losses:
                    return await self._recovery_begins() and not await self._pause(fault.in_recovery)
            elif self.tokens >= fault.at * self._expected_tokens:
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    async def _recovery_begins(self):
        """Waits until sequences of the lost home are computed again; False: the cycle is over."""
        while "recovery" not in self._look(self.tokens):
            if await self._pause(0.002):
                return False
        return True

    async def _pause(self, seconds):
        """Waits, but not longer than the cycle; whether that is over."""
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except asyncio.TimeoutError:
            pass
        return self._over.is_set()

    async def _stop(self, worker, seconds):
        worker.stop()
        pid = worker.pid
        await self._pause(seconds)
        if worker.runs and worker.pid == pid:
            worker.go_on()

    async def _kill(self, worker, fault):
        self._taken.add(fault.worker)
        worker.kill()
        if fault.kind == "refusal":
            async with worker.refused(fault.refusal, self._other_model):
                await self._pause(fault.seconds)
        else:
            await self._pause(fault.seconds)
        await worker.start()
        self._taken.remove(fault.worker)
