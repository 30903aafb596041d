"""The requests of a block's cycles, and what came of them."""
import dataclasses
import random

from fastdecode import SamplingParams

REQUESTS = 64
WORDS = ("once upon a time there was one day little the cat and dog who lived in big forest near river Anna Ben said "
         "they went to play with ball . , very happy").split()
STOPS = (".", " and", "the", "said", " happy", "zzz")


def make_requests(block_number):
    """(prompt, SamplingParams) of each, for the demo model."""
    chance = random.Random(f"requests {block_number}")
    return [(" ".join(chance.choices(WORDS, k=_words(chance))), _params(chance)) for _ in range(REQUESTS)]


def make_greedy_requests(block_number):
    """The same for any model, of token ids, and without what makes a token depend on more than the best logits."""
    chance = random.Random(f"greedy requests {block_number}")
    return [(chance.choices(range(1, 1000), k=_words(chance)),
             SamplingParams(temperature=0, logprobs=2, **_lengths(chance))) for _ in range(REQUESTS)]


def _words(chance):
    return chance.randint(*chance.choice(((1, 6), (1, 6), (10, 60), (10, 60), (100, 250))))


def _lengths(chance):
    most = chance.choice((chance.randint(1, 20), chance.randint(30, 120), chance.randint(100, 200)))
    return dict(max_tokens=most, min_tokens=chance.choice((0, chance.randint(0, most))),
                ignore_eos=chance.random() < 0.7)


def _params(chance):
    given = dict(_lengths(chance), temperature=0.0, seed=chance.getrandbits(64))
    if chance.random() < 0.6:
        given.update(temperature=chance.uniform(0.3, 1.4), top_k=chance.choice((0, chance.randint(1, 50))),
                     top_p=chance.choice((1.0, chance.uniform(0.5, 1))), min_p=chance.choice((0.0, 0.05)))
    if chance.random() < 0.3:
        given.update(repetition_penalty=chance.uniform(1, 1.4), presence_penalty=chance.choice((0.0, 0.5)),
                     frequency_penalty=chance.choice((0.0, 0.3)))
    if chance.random() < 0.3:
        given.update(stop=chance.sample(STOPS, 2), include_stop_str_in_output=chance.random() < 0.5)
    if chance.random() < 0.1:
        given.update(stop_token_ids=[chance.randrange(1024), chance.randrange(1024)])
    if chance.random() < 0.1:
        given.update(logit_bias={chance.randrange(1024): chance.uniform(-5, 5)})
    if chance.random() < 0.3:
        given.update(logprobs=chance.randint(0, 5))
    if chance.random() < 0.1:
        given.update(prompt_logprobs=chance.randint(0, 3))
    return SamplingParams(**given)


@dataclasses.dataclass
class Answer:
    """All that its reader was told of a request."""
    id: int = 0
    tokens: list = dataclasses.field(default_factory=list)
    text: str = ""
    logprobs: list = dataclasses.field(default_factory=list)
    top_logprobs: list = dataclasses.field(default_factory=list)
    prompt_logprobs: list = dataclasses.field(default_factory=list)
    defects: list = dataclasses.field(default_factory=list)  # of the events themselves
    finish: str = ""  # none: it has not ended
    stop_reason: object = None
    error: str = ""
    counts: tuple = ()
    pauses: int = 0
    recoveries: int = 0

    def add(self, event):
        if self.finish:
            self.defects.append("an event behind the last one")
        self.pauses += event.kind == "paused"
        if event.kind == "prompt":
            self.prompt_logprobs.append((event.logprobs, event.top_logprobs))
        elif event.kind == "token":
            if event.token_index != len(self.tokens):
                self.defects.append(f"token {event.token_index} follows {len(self.tokens)} tokens")
            self.tokens += event.tokens
            self.logprobs += event.logprobs or []
            self.top_logprobs += event.top_logprobs or []
        self.text += event.text
        if event.finish_reason is not None:
            self.finish, self.stop_reason, self.error = event.finish_reason, event.stop_reason, event.error
            self.counts = (event.prompt_tokens, event.generated_tokens)
            self.recoveries = event.times.recoveries if event.times else 0

    def end_defects(self):
        """What is wrong with it by itself."""
        found = list(self.defects)
        if not self.finish:
            found.append(f"it hangs after {len(self.tokens)} tokens")
        elif self.finish not in ("stop", "length"):
            found.append(f"it ended with {self.finish}: {self.error}")
        elif self.counts[1] != len(self.tokens):
            found.append(f"{self.counts[1]} tokens were generated, and {len(self.tokens)} came")
        # A stop string ends a request before the engine stops computing it.
        elif self.pauses != self.recoveries and not isinstance(self.stop_reason, str):
            found.append(f"it was computed again {self.recoveries} times, and {self.pauses} pauses were told")
        return found


COMPARED = ("tokens", "text", "finish", "stop_reason", "counts", "prompt_logprobs", "logprobs", "top_logprobs")


def difference(right, got, names=COMPARED):
    """The first difference of two answers to the same request, in words; empty: there is none."""
    for name in names:
        expected, found = getattr(right, name), getattr(got, name)
        if expected == found:
            continue
        if not isinstance(expected, list):
            return f"{name}: {found!r} and not {expected!r}"
        at = first_difference(expected, found)
        return (f"{name}, {len(found)} and not {len(expected)}, differ from number {at}: {found[at:at + 3]} and not "
                f"{expected[at:at + 3]}")
    return ""


def first_difference(one, other):
    """The first place where two lists differ."""
    return next((at for at, (x, y) in enumerate(zip(one, other)) if x != y), min(len(one), len(other)))
