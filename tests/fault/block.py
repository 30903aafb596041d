"""A block of cycles: three workers, an engine that lives through all of them, and what a run without faults answers."""
import asyncio
import json
import os
import shutil
import subprocess
import time

import fastdecode

from block_requests import REQUESTS, Answer, difference, make_greedy_requests, make_requests
from fault_plan import WORKERS, plan_block, plan_cycle
from losses import Log, judge_losses, refusals
from strikes import Strikes
from workers import Worker, open_counts

# Seconds without a token of any request, and until nothing is left of a cycle: whoever takes longer hangs. Far above
# what a busy machine needs, on which threads that yield may stand still for ten.
SILENCE_LIMIT_S = 180
SETTLE_LIMIT_S = 60

# Tokens: the demo model's.
MAX_CONTEXT = 512
# How many requests run at once, and GiB of each worker: where the homes are tight, what runs has not always room.
ROOMY, TIGHT = (24, 0.02), (48, 0.0019)


class Hung(Exception):
    """Something that has to happen has not, or a worker is gone: the process cannot go on. Has all that is known."""


class Block:
    """Runs cycles of one block. `plain`: without batch-invariant, in bf16."""

    def __init__(self, settings, number, folder):
        self.plan = plan_block(number)
        self._settings = settings
        self.requests = make_greedy_requests(number) if settings.plain else make_requests(number)
        self._max_sequences, kv_gib = ROOMY if self.plan.roomy else TIGHT
        self.workers = [Worker(settings.program, folder, f"b{number}w{index}", kv_gib) for index in range(WORKERS)]
        self._loop = asyncio.get_running_loop()
        self._log = Log(lambda: self._loop.call_soon_threadsafe(self._note_loss))
        self._strikes = None
        self.engine = None
        self.right = []
        self._open_before = open_counts(os.getpid())  # by this process
        self._open = {}  # by engine and workers at the block's begin

    # ---- Begin and end
    async def start(self):
        for worker in self.workers:
            await worker.start()
        reference = self._make_engine(hop_timeout_ms=60000)
        self.right = await self._answer_all(reference)
        reference.close()
        for index, answer in enumerate(self.right):
            if answer.end_defects():
                raise RuntimeError(f"block {self.plan.number}, without faults, request {index}: {answer.end_defects()}")
        self.engine = self._make_engine(hop_timeout_ms=self.plan.hop_timeout_ms, fault=self.plan.fault)
        # Whatever is opened at first use is open then.
        await self._answer_all(self.engine, requests=self.requests[:8])
        if left := await self._wait_while(self._left_to_do):
            raise RuntimeError(f"block {self.plan.number}, behind its first requests: {left}")
        self._open = self._counts_now()

    def end(self):
        if self.engine is not None:
            self.engine.close()
        for worker in self.workers:
            if worker.runs:
                worker.kill()
        if (now := open_counts(os.getpid())) != self._open_before:
            raise RuntimeError(f"block {self.plan.number}: this process had {self._open_before} open before its "
                               f"engines, and {now} when they were closed")

    def _make_engine(self, **more):
        exact = {} if self._settings.plain else {"batch_invariant": True}
        return fastdecode.Engine(
            self._settings.model, log=self._log.add, homes=[worker.endpoint for worker in self.workers], poll="yield",
            kv_type=self._settings.kv_type, compute="bf16" if self._settings.plain else self.plan.compute,
            max_sequences=self._max_sequences, max_queue=REQUESTS, prefill_chunk=self.plan.prefill_chunk,
            micro_batches=self.plan.micro_batches, max_context=MAX_CONTEXT, **exact, **more)

    async def _answer_all(self, engine, requests=None):
        requests = requests or self.requests
        answers = [Answer() for _ in requests]
        readers = [asyncio.create_task(_read(engine.submit(prompt, params), answer, lambda count: None))
                   for (prompt, params), answer in zip(requests, answers)]
        await _wait_for_end(readers, lambda: sum(len(answer.tokens) for answer in answers))
        return answers

    # ---- A cycle
    async def run_cycle(self, seed):
        """What came of it: a line of the report. Its "failures" are empty if all is as it must be."""
        plan = plan_cycle(seed, self.plan, REQUESTS)
        begin = time.monotonic()
        self.engine.reset_stats()
        answers = [Answer() for _ in self.requests]
        expected_tokens = sum(len(answer.tokens) for answer in self.right)
        self._strikes = strikes = Strikes(plan, self.workers, self._settings.other_model, expected_tokens, self._doing)
        readers = await self._submit(plan, answers)
        await _wait_for_end(readers, lambda: strikes.tokens)
        try:
            await strikes.end()
        except RuntimeError as error:
            raise Hung(self._all_that_is_known(plan, answers, str(error))) from error
        answered_s = time.monotonic() - begin
        if not all(answer.finish for answer in answers):
            raise Hung(self._all_that_is_known(plan, answers, f"requests without an end after {answered_s:.0f} s"))
        for worker in self.workers:
            if not worker.runs:
                raise Hung(self._all_that_is_known(plan, answers, f"{worker.endpoint} ended by itself"))
        failures = [failure for task in readers if (failure := _failure_of(task))]
        left = await self._wait_while(self._left_to_do) or await self._wait_while(self._left_open)
        if left:
            raise Hung(self._all_that_is_known(plan, answers, f"{SETTLE_LIMIT_S} s after the last answer: {left}"))
        statistics = json.loads(self.engine.stats_json())
        lines = self._log.since(begin)
        planned, unplanned, unexplained = judge_losses(lines, strikes.struck, self.workers, self.plan)
        failures += unexplained
        recoveries = sum(answer.recoveries for answer in answers)
        if recoveries > statistics["recoveries"]:
            failures.append(f"{statistics['recoveries']} recoveries were counted, and the requests had {recoveries}")
        return {
            "seed": seed, "kv_type": self._settings.kv_type, "main": plan.main,
            "faults": self._faults(strikes.struck, planned, statistics, lines),
            "during": _count(moment for strike in strikes.struck for moment in strike.during
                             if moment != "recovery" or strike.fault.in_recovery >= 0),
            "losses_planned": planned, "losses_unplanned": unplanned,
            "recovered_requests": sum(answer.recoveries > 0 for answer in answers),
            **{name: statistics[name] for name in ("recoveries", "recovered", "preemptions")},
            **{name: statistics[name] for name in ("loss_detection", "recovery_queue", "recovery")},
            "answered_s": round(answered_s, 3), "seconds": round(time.monotonic() - begin, 3),
            **self._settings.compare(self, answers, failures), "failures": failures,
        }

    async def _submit(self, plan, answers):
        readers = []
        for index in plan.order:
            prompt, params = self.requests[index]
            request = self.engine.submit(prompt, params, pause_events=True)
            readers.append(asyncio.create_task(_read(request, answers[index], self._strikes.note_tokens)))
            if plan.spread_s:
                await asyncio.sleep(plan.spread_s / REQUESTS)
        return readers

    def compare_exactly(self, answers, failures):
        """Every answer must be that of the run without faults, bit for bit."""
        for index, (right, answer) in enumerate(zip(self.right, answers)):
            wrong = answer.end_defects() or difference(right, answer)
            if wrong:
                failures.append(f"request {index}: {wrong}; it is {self.requests[index]}")
        return {}

    def _note_loss(self):
        if self._strikes is not None:
            self._strikes.note_loss()

    def _doing(self, tokens):
        """What a fault strikes into, where so many tokens have come."""
        stats, counts = self.engine.stats(), json.loads(self.engine.stats_json())
        moments = {"prefill": tokens == 0 and stats.requests_running > 0, "full queue": stats.requests_waiting > 0,
                   "recovery": counts["recoveries"] > counts["recovered"]}
        return tuple(moment for moment, is_now in moments.items() if is_now)

    def _faults(self, struck, planned, statistics, lines):
        """How often each kind of fault has struck."""
        faults = _count(strike.fault.kind for strike in struck)
        faults.update({kind: planned[kind] for kind in ("cut", "corrupt") if kind in planned})
        if self.plan.delay_us and statistics["hop"].get("max_us", 0) >= self.plan.delay_us:
            faults["delay"] = 1
        if refused := refusals(lines, struck, self.workers):
            faults["refused attempts"] = refused
        if sum(strike.fault.storm for strike in struck) > 1:
            faults["storm"] = 1
        if stops := planned.get("stop"):
            faults["stop with a loss"] = stops
        return faults

    # ---- What must be so between cycles
    def _left_to_do(self):
        """What keeps the engine and its homes from being as new, in words; empty: nothing."""
        stats = self.engine.stats()
        if stats.homes_up != stats.homes:
            return f"{stats.homes_up} of {stats.homes} homes are up"
        if stats.requests_waiting or stats.requests_running or stats.requests_undelivered or stats.kv_pages_used:
            return f"the engine has something to do: {stats}"
        # A home says what it has within 0.1 s of a change: what it said before its last reply may be old.
        homes, pages, now_ns = self.engine.homes(), json.loads(self.engine.pages_json()), time.monotonic_ns()
        silent = [said for said in pages if now_ns - said["age_ns"] < homes[said["index"]].last_reply_ns]
        if len(pages) != stats.homes or silent:
            return f"not every home has said what pages it has: {pages}"
        kept = all(said["pages_used"] == homes[said["index"]].kv_pages_cached for said in pages)
        return "" if kept else f"pages are in use that are not cached: {pages}, {homes}"

    def _left_open(self):
        now = self._counts_now()
        return "" if now == self._open else f"open before: {self._open}; now: {now}"

    def _counts_now(self):
        """Without the teams of the homes: a worker that starts takes the cores that nobody has just then."""
        counts = {"engine": open_counts(os.getpid())}
        homes = json.loads(self.engine.stats_json())["homes"]
        for worker in self.workers:
            counts[worker.endpoint] = open_counts(worker.pid)
            counts[worker.endpoint]["threads"] -= sum(
                home["threads"] for home in homes if home["name"].startswith(f"{worker.endpoint},"))
        return counts

    async def _wait_while(self, left):
        """Waits until nothing is left; returns what is, after SETTLE_LIMIT_S."""
        waited_s, last = 0, time.monotonic()
        while (what := left()) and waited_s < SETTLE_LIMIT_S:
            await asyncio.sleep(0.02)
            now = time.monotonic()
            waited_s += min(now - last, 1)  # a machine that stands still for minutes has not kept anybody waiting
            last = now
        return what

    # ---- Where that is not so
    def _all_that_is_known(self, plan, answers, what):
        parts = [what, repr(self.plan), repr(plan), repr(self._strikes.struck)]
        for index, answer in enumerate(answers):
            if not answer.finish:
                parts.append(f"request {index} (id {answer.id}) has {len(answer.tokens)} of "
                             f"{len(self.right[index].tokens)} tokens; {self.requests[index]}")
        parts += [self.engine.describe(), str(self.engine.stats()), str(self.engine.homes()), self.engine.stats_json(),
                  self.engine.pages_json()]
        parts += [f"{at:.3f} {text}" for at, text in self._log.since(0)[-200:]]
        parts += [f"{worker.endpoint} runs: {worker.runs}\n{worker.messages()}" for worker in self.workers]
        for name, pid in [("engine", os.getpid())] + [(worker.endpoint, worker.pid) for worker in self.workers]:
            parts += [f"threads of {name}:", _stacks(pid)]
        return "\n".join(parts)


async def _wait_for_end(readers, tokens):
    """Waits until all tasks have ended, or no token has come for SILENCE_LIMIT_S; `tokens`: how many have come."""
    before, silent_s = None, 0
    while silent_s < SILENCE_LIMIT_S:
        done, running = await asyncio.wait(readers, timeout=1)  # so that a machine that stands still counts no longer
        if not running:
            return
        now = (tokens(), len(done))
        silent_s = silent_s + 1 if now == before else 0
        before = now


async def _read(request, answer, on_tokens):
    answer.id = request.id
    async for event in request:
        answer.add(event)
        if event.kind == "token":
            on_tokens(len(event.tokens))


def _failure_of(task):
    error = task.exception()
    return "" if error is None else f"reading failed: {error!r}"


def _count(items):
    counts = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return counts


def _stacks(pid):
    if shutil.which("gdb") is None:
        return "(there is no gdb)"
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 20"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout
    except subprocess.TimeoutExpired:
        return "(gdb took too long)"
