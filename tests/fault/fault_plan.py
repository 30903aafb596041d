"""What goes wrong in a cycle, decided by its seed alone.

Ten seeds make a block, whose cycles share an engine, its requests and the faults of its links: these are an option of
the engine. What happens to the workers' processes is each cycle's own.
"""
import dataclasses
import random

WORKERS = 3
CYCLES_A_BLOCK = 10

# The fault that a cycle is about, in turn; others may come beside it.
MAIN_FAULTS = ("kill", "short stop", "long stop", "refusal", "storm", "loss in recovery")
# What the links of a block do, in turn.
LINK_FAULTS = (("cut",), ("corrupt",), ("delay",), ("cut", "corrupt", "delay"))
# Who answers in the place of a worker that was killed.
REFUSALS = ("other model", "closes", "silent", "garbage")

# A stop of at least this share of the hop timeout may be why a home was lost.
STOP_COUNTS_FROM = 0.8


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    number: int
    link_faults: tuple
    fault: str  # the engine's option
    delay_us: int  # of replies that are held back; 0: none is
    hop_timeout_ms: int
    prefill_chunk: int
    micro_batches: int
    compute: str
    roomy: bool  # homes have room for more than what runs, also when some are lost


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str  # "kill", "stop" or "refusal"
    worker: int
    at: float  # once this share of the cycle's tokens has come; 0: before the first
    seconds: float  # until the worker is started again, or goes on
    refusal: str = ""
    in_recovery: float = -1  # instead of `at`: so long after sequences of a lost home begin to be computed again
    storm: bool = False


@dataclasses.dataclass(frozen=True)
class CyclePlan:
    seed: int
    main: str
    faults: tuple
    order: tuple  # of the requests
    spread_s: float  # over which they come; 0: all at once


def plan_block(number):
    chance = random.Random(f"block {number}")
    links = set(LINK_FAULTS[number % len(LINK_FAULTS)])
    if chance.random() < 0.5:
        links.add("delay")
    parts, delay_us = [f"seed={chance.randrange(1, 1 << 32)}"], 0
    if "cut" in links:
        parts.append(f"cut-share={chance.uniform(0.0003, 0.0008):.6f}")
    if "corrupt" in links:
        parts.append(f"corrupt={chance.uniform(0.0002, 0.0005):.6f},corrupt-reply={chance.uniform(0.0002, 0.0005):.6f}")
    if "delay" in links:
        delay_us = chance.randrange(200, 3000)
        parts.append(f"delay={chance.uniform(0.02, 0.1):.3f}:{delay_us}us")
    return BlockPlan(number=number, link_faults=tuple(sorted(links)), fault=",".join(parts), delay_us=delay_us,
                     hop_timeout_ms=chance.choice((600, 900, 1300)), prefill_chunk=chance.choice((16, 64, 256)),
                     micro_batches=chance.choice((1, 2, 3)), compute=chance.choice(("auto", "f32")),
                     roomy=chance.random() < 0.5)


def plan_cycle(seed, block, requests):
    chance = random.Random(f"cycle {seed}")
    timeout_s = block.hop_timeout_ms / 1000
    main = MAIN_FAULTS[seed % len(MAIN_FAULTS)]
    faults = _main_faults(main, chance, timeout_s)
    for _ in range(chance.choice((0, 0, 1, 2))):
        faults.append(_any_fault(chance, chance.randrange(WORKERS), _moment(chance)))
    order = list(range(requests))
    chance.shuffle(order)
    return CyclePlan(seed, main, tuple(faults), tuple(order), chance.choice((0, 0, 0.3)))


def _main_faults(main, chance, timeout_s):
    worker, at = chance.randrange(WORKERS), _moment(chance)
    if main == "kill":
        return [Fault("kill", worker, at, chance.uniform(0.05, 1.5))]
    if main == "short stop":
        return [Fault("stop", worker, at, chance.uniform(0.2, 0.6 * timeout_s))]
    if main == "long stop":
        return [Fault("stop", worker, at, chance.uniform(1.5 * timeout_s, 5))]
    if main == "refusal":
        return [_refusal(chance, worker, at)]
    if main == "storm":
        victims = chance.sample(range(WORKERS), chance.choice((2, 3)))
        return [dataclasses.replace(_any_fault(chance, victim, at), storm=True) for victim in victims]
    second = _any_fault(chance, (worker + chance.randrange(1, WORKERS)) % WORKERS, 0)
    return [Fault("kill", worker, at, chance.uniform(0.05, 1)),
            dataclasses.replace(second, in_recovery=chance.uniform(0, 0.02))]


def _moment(chance):
    """A quarter comes before the first token, while the queue is full and prompts are computed."""
    return 0 if chance.random() < 0.25 else chance.uniform(0.02, 0.75)


def _any_fault(chance, worker, at):
    kind = chance.random()
    if kind < 0.5:
        return Fault("kill", worker, at, chance.uniform(0.05, 1.5))
    if kind < 0.8:
        return Fault("stop", worker, at, 0.2 * 25**chance.random())  # 0.2 to 5 s
    return _refusal(chance, worker, at)


def _refusal(chance, worker, at):
    return Fault("refusal", worker, at, chance.uniform(0.3, 1.5), chance.choice(REFUSALS))
