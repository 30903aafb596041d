"""Runs without batch-invariant: which requests were computed again, and whether a token that differs is within bf16's
error.

Sums in another order give other logits, so that the run with faults may choose another token where the two best are
about as likely. Differences of log-probabilities are those of the logits.
"""
import array
import math
import pathlib
import struct
import subprocess
import tempfile

from block_requests import COMPARED, difference, first_difference

# Texts whose logits are compared, and how much larger than bf16's error the gap between the two best may be.
TEXTS = 6
ERRORS_ALLOWED = 2
# What is the same where all tokens are.
ROUNDED_ALIKE = tuple(name for name in COMPARED if "logprobs" not in name)


class PlainComparison:
    """Compares answers with those of the run without faults, up to the first token that differs."""

    def __init__(self, settings):
        self._settings = settings
        self._error = None  # rms of the logits in bf16

    def __call__(self, block, answers, failures):
        """The "plain" part of a cycle's line."""
        if self._error is None:
            self._error = self._measure_error(block)
        recovered = {index for index, answer in enumerate(answers) if answer.recoveries}
        gaps, roundings = {}, []
        for index, (right, answer) in enumerate(zip(block.right, answers)):
            wrong = answer.end_defects()
            at = first_difference(right.tokens, answer.tokens)
            roundings.append(max((abs(x - y) for x, y in zip(right.logprobs[:at], answer.logprobs[:at])), default=0))
            if not wrong and (at < len(right.tokens) and at < len(answer.tokens)):
                gaps[index] = _gap(right.top_logprobs[at])
                if gaps[index] > ERRORS_ALLOWED * self._error:
                    wrong = [f"token {at} differs, where the two best logits are {gaps[index]:.4f} apart, and bf16's "
                             f"error is {self._error:.4f}: {right.top_logprobs[at]}, {answer.top_logprobs[at]}"]
            elif not wrong and (found := difference(right, answer, ROUNDED_ALIKE)):
                wrong = [found]
            if wrong:
                failures.append(f"request {index}: {wrong}; it is {block.requests[index]}")
        return {"plain": {
            "logit_error_rms": self._error,
            "recovered_that_differ": len(recovered & set(gaps)), "others_that_differ": len(set(gaps) - recovered),
            "rounded_otherwise": sum(rounding > 0 for rounding in roundings), "logprob_difference_max": max(roundings),
            "gaps": sorted(round(gap, 5) for gap in gaps.values())}}

    def _measure_error(self, block):
        """RMS of the differences of logits in bf16 from those in f32, over the block's longest texts."""
        texts = [prompt + right.tokens for (prompt, _), right in zip(block.requests, block.right)]
        squares = count = 0
        for ids in sorted(texts, key=len)[-TEXTS:]:
            exact, rounded = self._logits(ids, "f32", "f32"), self._logits(ids, "bf16", self._settings.kv_type)
            squares += math.fsum((x - y) ** 2 for x, y in zip(exact, rounded))
            count += len(exact)
        return math.sqrt(squares / count)

    def _logits(self, ids, compute, kv_type):
        """The logits of all positions of a text, computed as a prompt in a process of its own."""
        with tempfile.TemporaryDirectory(prefix="fd-fault-") as folder:
            path = pathlib.Path(folder) / "logits.npy"
            command = [self._settings.program, "generate", "--model", str(self._settings.model), "--prompt-ids",
                       ",".join(map(str, ids)), "-n", "1", "--logits", str(path), "--compute", compute, "--kv-type",
                       kv_type, "--max-context", "512", "--kv-gib", "0.02", "--hop-timeout-ms", "60000", "-q"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=120)
            data = path.read_bytes()
        floats = array.array("f")
        floats.frombytes(data[10 + struct.unpack_from("<H", data, 8)[0]:])
        return floats


def _gap(top):
    """Between the two most likely tokens."""
    return top[0][1] - top[1][1]
