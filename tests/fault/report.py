"""The report of many cycles, a line of JSON each, and its sums."""
import json

# What must have struck for a run to have had every kind of fault, with the moments of the hard ones.
KINDS = {"kill", "stop", "stop with a loss", "refusal", "refused attempts", "storm", "cut", "corrupt", "delay",
         "prefill", "full queue", "recovery"}
DURATIONS = {"loss_detection": "from a home's last sign of life to its loss", "recovery_queue": "in the queue",
             "recovery": "from the loss until computed again"}


class Report:
    """The lines of this run, and those that a file has from runs before it."""

    def __init__(self, given):
        self._path, self._mode, self._commit = given.report, "plain" if given.plain else "exact", given.commit
        self._kv_type = given.kv_type
        self.lines = []
        self._had = set()
        if given.resume and self._path.exists():
            for text in self._path.read_text().splitlines():
                line = json.loads(text)
                if (line["mode"], line["kv_type"], line["commit"]) == (self._mode, self._kv_type, self._commit):
                    self._had.add(line["seed"])

    def has(self, seed):
        return seed in self._had

    def add(self, line):
        line = {"commit": self._commit, "mode": self._mode, **line}
        self.lines.append(line)
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        print(f"seed {line['seed']} {line['kv_type']} {line.get('main', '')}: {line.get('faults')}, losses planned "
              f"{line.get('losses_planned')} unplanned {line.get('losses_unplanned')}, {line.get('recoveries')} "
              f"recoveries, {line.get('seconds')} s", flush=True)
        for failure in line["failures"]:
            print(f"  FAILED: {failure}", flush=True)

    def add_hung(self, seed, known):
        self.add({"seed": seed, "kv_type": self._kv_type, "failures": [known]})

    def missing_kinds(self):
        """The kinds of faults that have not struck in this run."""
        return KINDS - {kind for line in self.lines for part in ("faults", "during") for kind in line.get(part, {})}


def summary(lines):
    """Sums of cycles, as text."""
    parts = [f"{len(lines)} cycles, {sum(bool(line['failures']) for line in lines)} failed, "
             f"{sum(line.get('seconds', 0) for line in lines):.0f} s"]
    for name in ("faults", "during", "losses_planned", "losses_unplanned"):
        parts.append(f"{name.replace('_', ' ')}: {_sums(lines, name)}")
    parts.append(", ".join(f"{name} {sum(line.get(name, 0) for line in lines)}"
                           for name in ("recovered_requests", "recoveries", "recovered", "preemptions")))
    for name, meaning in DURATIONS.items():
        seen = [line[name] for line in lines if line.get(name, {}).get("count")]
        count = sum(one["count"] for one in seen)
        if count:
            mean_us = sum(one["count"] * one["mean_us"] for one in seen) / count
            parts.append(f"{name} ({meaning}): {count}, mean {mean_us / 1e3:.1f} ms, longest "
                         f"{max(one['max_us'] for one in seen) / 1e3:.0f} ms")
    if any("plain" in line for line in lines):
        parts.append(_plain_sums([line["plain"] for line in lines if "plain" in line]))
    return "\n".join(parts)


def _sums(lines, name):
    sums = {}
    for line in lines:
        for key, count in line.get(name, {}).items():
            sums[key] = sums.get(key, 0) + count
    return ", ".join(f"{key} {count}" for key, count in sorted(sums.items())) or "none"


def _plain_sums(parts):
    """Sums of the "plain" parts of many cycles, as text."""
    total = {name: sum(part[name] for part in parts)
             for name in ("recovered_that_differ", "others_that_differ", "rounded_otherwise")}
    errors = [part["logit_error_rms"] for part in parts]
    gaps = [gap / part["logit_error_rms"] for part in parts for gap in part["gaps"]]
    rounding = max(part["logprob_difference_max"] for part in parts)
    return (f"{total['recovered_that_differ']} requests that recovered differ, and "
            f"{total['others_that_differ']} of the others; {total['rounded_otherwise']} have other log-probabilities, "
            f"by at most {rounding:.4f}; bf16's error of a logit {min(errors):.4f} to {max(errors):.4f} rms; gap where "
            f"they differ: at most {max(gaps, default=0):.2f} of it")
