"""How the templates_*.py files write their cases down.

Each has GROUPS: the name of a group to a list of (template, context).
"""

import re

ROW = 4  # expressions that one template of rows() prints


def templates(*sources, **context):
    return [(source, context) for source in sources]


def expressions(*sources, **context):
    """Templates that print one expression each."""
    return templates(*["{{ " + source + " }}" for source in sources], **context)


def rows(*sources, **context):
    """Templates that print a few expressions each, of which none is an error."""
    chunks = [sources[begin:begin + ROW] for begin in range(0, len(sources), ROW)]
    return templates(*[" | ".join("{{ " + source + " }}" for source in chunk) for chunk in chunks], **context)


def cases_of(groups):
    """[{"name", "template", "context"}]: a name is GROUP/NUMBER; a context has only what its template names."""
    cases = []
    for group, entries in groups.items():
        for number, (template, context) in enumerate(entries, 1):
            words = set(re.findall(r"\w+", template))
            named = {name: value for name, value in context.items() if name in words}
            cases.append({"name": f"{group}/{number:02}", "template": template, "context": named})
    return cases
