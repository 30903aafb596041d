#!/usr/bin/env python3
"""The grammar of the demo model's stories: a sampler, and a recogniser that accepts exactly what can be sampled.

grammar.json holds the language as data. A rule is a list of productions; a production is a string, or a list of strings
that are joined by a space. In it, `[rule]` stands for any production of that rule, and `{role.field}` for a field of
the record that plays the role in this story (the hero, the toy ...). A role is cast where it is first mentioned and
stays the same to the end.

Needs the Python standard library only.
"""

import argparse
import json
import pathlib
import random
import re
import sys

PART = re.compile(r"\[(\w+)\]|\{(\w+)\.(\w+)\}")


class Grammar:
    """Immutable after construction.

    rules: name -> productions, each a list of parts: ("text", literal), ("rule", name) or ("field", role, field index).
    """

    def __init__(self, path=pathlib.Path(__file__).parent / "grammar.json"):
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.records = {role: table["rows"] for role, table in data["roles"].items()}
        self.fields = {role: table["fields"] for role, table in data["roles"].items()}
        self.rules = {
            name: [self._parts(production) for production in productions]
            for name, productions in data["rules"].items()
        }
        self._check()

    def sample(self, rng):
        """Returns one story; every choice is uniform."""
        cast = {}
        return "".join(self._sample_rule("story", cast, rng))

    def parse(self, story):
        """Returns "" if the language has this story, else where and why it leaves the language."""
        furthest = [0, set()]  # how far any attempt came, and what it hoped to find there
        for end, _ in self._match_rule("story", story, 0, {}, furthest):
            if end == len(story):
                return ""
            self._expect(furthest, end, "the end")
        position, expected = furthest
        found = story[position:position + 20]
        hopes = ", ".join(repr(text) for text in sorted(expected)[:3])
        return f"at character {position}: {found!r}, expected {hopes}{' ...' if len(expected) > 3 else ''}"

    def _parts(self, production):
        text = production if isinstance(production, str) else " ".join(production)
        parts, end = [], 0
        for match in PART.finditer(text):
            if match.start() > end:
                parts.append(("text", text[end:match.start()]))
            rule, role, field = match.groups()
            if rule:
                parts.append(("rule", rule))
            else:
                parts.append(("field", role, self.fields[role].index(field)))
            end = match.end()
        if end < len(text):
            parts.append(("text", text[end:]))
        return parts

    def _check(self):
        for role, rows in self.records.items():
            for row in rows:
                if len(row) != len(self.fields[role]):
                    raise ValueError(f"grammar.json: {role}: {row} does not have the fields {self.fields[role]}")
        used = {part[1] for ps in self.rules.values() for p in ps for part in p if part[0] == "rule"} | {"story"}
        if used != set(self.rules):
            raise ValueError(f"grammar.json: rules missing or never used: {sorted(used ^ set(self.rules))}")

    def _sample_rule(self, name, cast, rng):
        for part in rng.choice(self.rules[name]):
            if part[0] == "text":
                yield part[1]
            elif part[0] == "rule":
                yield from self._sample_rule(part[1], cast, rng)
            else:
                _, role, field = part
                if role not in cast:
                    cast[role] = rng.choice(self.records[role])
                yield cast[role][field]

    # The recogniser: recursive descent that yields every (end, cast) of a match, so that callers backtrack by going on.

    def _match_rule(self, name, story, start, cast, furthest):
        for production in self.rules[name]:
            yield from self._match_parts(production, 0, story, start, cast, furthest)

    def _match_parts(self, parts, index, story, start, cast, furthest):
        if index == len(parts):
            yield start, cast
            return
        for end, new_cast in self._match_part(parts[index], story, start, cast, furthest):
            yield from self._match_parts(parts, index + 1, story, end, new_cast, furthest)

    def _match_part(self, part, story, start, cast, furthest):
        if part[0] == "rule":
            yield from self._match_rule(part[1], story, start, cast, furthest)
        elif part[0] == "text":
            if story.startswith(part[1], start):
                yield start + len(part[1]), cast
            else:
                self._expect(furthest, start, part[1])
        else:
            _, role, field = part
            for record in [cast[role]] if role in cast else self.records[role]:
                if story.startswith(record[field], start):
                    yield start + len(record[field]), {**cast, role: record}
                else:
                    self._expect(furthest, start, record[field])

    @staticmethod
    def _expect(furthest, position, text):
        if position > furthest[0]:
            furthest[:] = [position, set()]
        if position == furthest[0]:
            furthest[1].add(text)


def sample_stories(count, seed):
    grammar, rng = Grammar(), random.Random(seed)
    return [grammar.sample(rng) for _ in range(count)]


def check(path, min_share):
    """Parses the stories of a file of lines {"text": ...}; returns the exit code."""
    grammar = Grammar()
    with open(path, encoding="utf-8") as lines:
        reasons = [grammar.parse(json.loads(line)["text"]) for line in lines if line.strip()]
    for number, reason in enumerate(reasons):
        if reason:
            print(f"story {number + 1}: {reason}")
    good = reasons.count("")
    share = good / len(reasons) if reasons else 0.0
    print(f"{good} of {len(reasons)} stories parse ({share:.1%}, at least {min_share:.1%} asked)")
    return 0 if share >= min_share else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help='write stories, one {"text": ...} a line')
    sample.add_argument("--count", type=int, default=1)
    sample.add_argument("--seed", type=int, default=0)
    checker = commands.add_parser("check", help='parse the stories of a file of lines {"text": ...}')
    checker.add_argument("file")
    checker.add_argument("--min-share", type=float, default=0.95)
    arguments = parser.parse_args()
    if arguments.command == "check":
        return check(arguments.file, arguments.min_share)
    for story in sample_stories(arguments.count, arguments.seed):
        print(json.dumps({"text": story}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
