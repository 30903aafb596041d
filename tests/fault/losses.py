"""Which homes an engine lost, by its log, and whether that was planned."""
import re
import time

from fault_plan import STOP_COUNTS_FROM

LOST = re.compile(r"home \d+ \(unix:(?P<path>.*), home \d+\) was lost: (?P<cause>.*)")
NOT_BACK = re.compile(r"home \d+ \(unix:(?P<path>.*), home \d+\) is not back yet: (?P<why>.*)")
# What a corrupted header does.
SENSELESS = re.compile("protocol error|refused a hop|belongs to no open hop|rows are not the hop's|"
                       "gave the link up: hop: ")
TIMEOUT = "no progress within the hop timeout"


class Log:
    """What an engine logs. Its threads call add."""

    def __init__(self, on_loss):
        self._on_loss = on_loss
        self.lines = []  # (time.monotonic(), text)

    def add(self, _, text):
        self.lines.append((time.monotonic(), text))
        if LOST.search(text):
            self._on_loss()

    def since(self, begin):
        return [(at, text) for at, text in list(self.lines) if at >= begin]


def judge_losses(lines, strikes, workers, block):
    """How many homes were lost by which planned fault, how many to whom nothing was done, and what nothing explains.

    Stalls of the machine are losses that nobody planned. In a block with corrupted headers a hop may have got lost as
    well, since a home waits for the roster that a header names: such timeouts are counted as "unclear".
    """
    planned, unplanned, failures = {}, {}, []
    for at, text in lines:
        found = LOST.search(text)
        if not found:
            continue
        worker = next(index for index, one in enumerate(workers) if str(one.path) == found["path"])
        cause = _planned_cause(found["cause"], worker, at, strikes, block)
        if cause:
            planned[cause] = planned.get(cause, 0) + 1
        elif TIMEOUT in found["cause"]:
            why = "unclear" if "corrupt" in block.link_faults else "stall"
            unplanned[why] = unplanned.get(why, 0) + 1
        else:
            failures.append(f"a home was lost, and nothing was done to it: {text}")
    return planned, unplanned, failures


def _planned_cause(cause, worker, at, strikes, block):
    if "fault link: cut" in cause:
        return "cut"
    mine = [strike for strike in strikes if strike.fault.worker == worker and strike.begin <= at]
    for strike in mine:
        is_down = not strike.end or at <= strike.end
        if strike.fault.kind != "stop" and (f"(pid {strike.pid}) went away" in cause or (TIMEOUT in cause and is_down)):
            return strike.fault.kind
    if TIMEOUT in cause:
        long = [strike for strike in mine if strike.fault.kind == "stop" and
                strike.seconds(at) >= STOP_COUNTS_FROM * block.hop_timeout_ms / 1000]
        return "stop" if long else ""
    if "corrupt" in block.link_faults and SENSELESS.search(cause):
        return "corrupt"
    return ""


def refusals(lines, strikes, workers):
    """How often the engine was refused by what stood in for a worker."""
    count = 0
    for at, text in lines:
        found = NOT_BACK.search(text)
        count += bool(found) and any(
            strike.fault.kind == "refusal" and strike.begin <= at and (not strike.end or at <= strike.end) and
            str(workers[strike.fault.worker].path) == found["path"] for strike in strikes)
    return count
