"""Conversations for any chat template, as transformers hands them to it.

contexts() is the matrix: every conversation with and without a generation prompt. tools and documents are there as None
where a request has none, and a message's reasoning stands under both of its names, as transformers arranges it.
"""

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def reasoned(reasoning, content, **fields):
    return {"thinking": reasoning, **assistant(content, **fields), "reasoning_content": reasoning}


def calls(*functions, first_id=0):
    """tool_calls: (name, arguments) of each, with ids of nine characters."""
    return [
        {"id": f"call{first_id + number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(functions)
    ]


def result(content, number=0, name="get_weather"):
    return {"role": "tool", "tool_call_id": f"call{number:05}", "name": name, "content": content}


def text_part(text):
    return {"type": "text", "text": text}


def tool(name, description, properties, required=(), **fields):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters, **fields}
    return {"type": "function", "function": function}


WEATHER = tool(
    "get_weather", "Tells the weather of a city <now & \"here\">.",
    {
        "city": {"type": "string", "description": "The city's name, e.g. Zürich or 東京"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    },
    ["city"],
)
SEARCH = tool(
    "search", "Searches.\nIn two lines.",
    {
        "query": {"type": ["string", "integer"], "description": "What to look for", "minLength": 1},
        "limit": {"type": "integer", "default": 10, "minimum": 0},
        "score": {"type": "number", "default": 0.5, "maximum": 1e16},
        "exact": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"},
        "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "where": {
            "type": "object", "required": ["items"], "description": "A filter",
            "properties": {
                "items": {"type": "array", "items": {"type": "object"}}, "keys": {"type": "string", "nullable": True},
            },
        },
    },
    ["query", "limit"], strict=True,
)
ANY_TYPES = tool(
    "put", "Takes values without a type.",
    {
        "either": {"oneOf": [{"type": "string", "default": "a"}, {"type": "integer", "description": "a number"}]},
        "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "nothing": {"type": ["string", "null"]}, "free": {},
    },
)
NO_PARAMETERS = {
    "type": "function", "function": {"name": "get_time", "description": "Tells the time.", "parameters": {}},
}
TOOLS = [WEATHER, SEARCH]
DOCUMENTS = [
    {"doc_id": 1, "title": "Bees", "text": "Bees fly.\nThey make honey."},
    {"doc_id": 2, "title": "Käse 🧀", "text": "Cheese is made of milk & \"rennet\"."},
]

HELLO = [user("Hello, who are you?")]
TURNS = [
    user("What is 2 + 2?"), assistant("4."), user("And times 3?"), assistant("12.\n\nAnything else?"),
    user("No, thanks"),
]
WITH_CALL = [
    user("How is the weather in Zürich?"),
    assistant("", tool_calls=calls(("get_weather", {"city": "Zürich", "unit": "celsius"}))),
    result('{"temperature": 21.5, "sky": "clear"}'),
]
TEXT_ARGUMENTS = [
    user("Search."), assistant("", tool_calls=calls(("search", '{"query": "a \\"b\\"", "limit": 3}'))),
    result("nothing found", name="search"),
]
TWO_CALLS = [
    user("Compare the weather of Bern and 東京."),
    assistant("I look at both.", tool_calls=calls(
        ("get_weather", {"city": "Bern"}), ("get_weather", {"city": "東京", "n": None}),
    )),
    result("rain", 0), result("sun", 1), assistant("It rains in Bern."), user("And tomorrow?"),
]
TWO_ROUNDS = [
    user("Find it."),
    reasoned("I should search.", "", tool_calls=calls(("search", {"query": "it", "tags": ["a", "b"], "score": 1.0}))),
    result("[]", name="search"), reasoned("Again.", "", tool_calls=calls(("get_time", {}), first_id=1)),
    result("12:00", 1, "get_time"), reasoned("Now I know.", "It is noon."),
]
REASONED = [user("Think."), reasoned("First,\nthen.", "Done."), user("Again."), reasoned("\n\n Hm. \n", "\n\nYes.")]
THOUGHT = [
    user("Think."), assistant("<think>\nFirst.\n</think>\n\nDone."), user("Again."),
    assistant("<think>\n\n</think>\n\nYes.</think>"), user("?"),
]
PARTS = [
    system([text_part("Be brief.")]), user([text_part("What is "), text_part("this?")]),
    assistant([text_part("A text.")]), user([text_part("ok")]),
]
IMAGES = [
    user([{"type": "image", "url": "a.png"}, text_part("What is in it?")]), assistant("A cat."),
    user([{"type": "image_url"}, text_part("?")]),
]
ODD_TEXTS = [
    system("  Präzise, bitte!\n\n"), user("\n {{ x }} {% if %} <|im_end|> </s> \\n \"'&<> \t"),
    assistant("  a\u00a0\r\nb\u2028c \n"),
    user("你好 🙂 e\u0301 \u200b עברית\u0000\u001f\ufeff"),
]

# name: (messages, what else the template sees)
CONVERSATIONS = {
    "system and user": ([system("You are helpful."), *HELLO], {}),
    "user": (HELLO, {}),
    "several turns": ([system("Be brief."), *TURNS], {}),
    "turns without system": (TURNS, {}),
    "answer at the end": ([system("Be brief."), *TURNS[:4]], {}),
    "tools": (HELLO, {"tools": TOOLS}),
    "tools and system": ([system("You are helpful."), *HELLO], {"tools": [WEATHER, NO_PARAMETERS]}),
    "tools of any types": (HELLO, {"tools": [ANY_TYPES]}),
    "no tools": (HELLO, {"tools": []}),
    "tool result": (WITH_CALL, {"tools": TOOLS}),
    "tool result and system": (
        [system("You are helpful."), *WITH_CALL, assistant("Clear, 21.5 °C.")], {"tools": TOOLS},
    ),
    "tool result and no tools": ([system("You are helpful."), *WITH_CALL, assistant("Clear.")], {"tools": []}),
    "several turns and no tools": ([system("You are helpful."), *TURNS], {"tools": []}),
    "calls without tools": ([*WITH_CALL, assistant("Clear."), user("Thanks")], {}),
    "call at the end": (WITH_CALL[:2], {"tools": [WEATHER]}),
    "arguments as text": (TEXT_ARGUMENTS, {"tools": TOOLS}),
    "two calls": (TWO_CALLS, {"tools": TOOLS}),
    "two rounds of calls": (TWO_ROUNDS, {"tools": [*TOOLS, NO_PARAMETERS]}),
    "call without content": (
        [WITH_CALL[0], {"role": "assistant", "tool_calls": WITH_CALL[1]["tool_calls"]}, WITH_CALL[2]], {"tools": TOOLS},
    ),
    "call with null content": ([WITH_CALL[0], {**WITH_CALL[1], "content": None}, WITH_CALL[2]], {"tools": TOOLS}),
    "bare functions": (
        [
            user("Time?"), assistant("", tool_calls=[{"name": "get_time", "arguments": {"zone": "CET"}}]),
            result("noon", name="get_time"),
        ],
        {"tools": [WEATHER["function"]]},
    ),
    "structured result": (
        [*WITH_CALL[:2], result({"temperature": 21.5, "notes": [None, True, "é"]})], {"tools": TOOLS},
    ),
    "result in parts": ([*WITH_CALL[:2], result([text_part("clear")])], {"tools": TOOLS}),
    "result first": ([result("clear"), *HELLO], {}),
    "odd texts": (ODD_TEXTS, {}),
    "odd texts and tools": (ODD_TEXTS, {"tools": TOOLS}),
    "empty contents": ([system(""), user(""), assistant(""), user("")], {}),
    "content parts": (PARTS, {}),
    "images": (IMAGES, {}),
    "no content parts": ([user([])], {}),
    "developer": ([{"role": "developer", "content": "Answer in rhymes."}, *TURNS], {"tools": [WEATHER]}),
    "system later": ([*TURNS[:2], system("Be rude."), *TURNS[2:]], {}),
    "two systems": ([system("One."), system("Two."), *HELLO], {}),
    "system alone": ([system("You are helpful.")], {}),
    "two users": ([user("One."), user("Two.")], {}),
    "assistant first": ([assistant("Hi!"), *HELLO], {}),
    "unknown role": ([{"role": "critic", "content": "Bad."}, *HELLO], {}),
    "no messages": ([], {}),
    "no role": ([{"content": "Hello"}], {}),
    "null content": ([user(None)], {}),
    "number as content": ([user(5), assistant(1.5), user(True)], {}),
    "reasoning": ([*REASONED, user("Why?")], {}),
    "reasoning at the end": (REASONED, {}),
    "thoughts in the content": (THOUGHT, {}),
    "prefix": ([*HELLO, assistant("I am", prefix=True)], {"enable_thinking": True}),
    "documents": ([system("Use them."), user("Do bees make cheese?")], {"documents": DOCUMENTS}),
    "documents and tools": (HELLO, {"documents": DOCUMENTS, "tools": TOOLS}),
    "thinking on": ([system("Be brief."), *REASONED, user("Why?")], {"enable_thinking": True, "thinking": True}),
    "thinking off": ([system("Be brief."), *REASONED, user("Why?")], {"enable_thinking": False, "thinking": False}),
    "thinking off with tools": (TWO_CALLS, {"enable_thinking": False, "tools": TOOLS}),
    "think words": ([system("Be brief. /no_think"), user("Hello /think"), assistant("Hi"), user("Bye /nothink")], {}),
    "high effort": ([system("Be brief."), *TURNS], {"reasoning_effort": "high", "model_identity": "You are a test."}),
    "low effort": (TWO_ROUNDS, {"reasoning_effort": "low", "tools": TOOLS}),
    "date": (HELLO, {"date_string": "01 Feb 2025", "current_date": "2025-02-01"}),
    "date and tools": ([system("Be brief."), *WITH_CALL], {"date_string": "01 Feb 2025", "tools": [WEATHER]}),
    "tools in system": ([system("Be brief."), *WITH_CALL], {"tools_in_user_message": False, "tools": TOOLS}),
    "built-in tools": (HELLO, {"builtin_tools": ["browser", "python", "code_interpreter"]}),
    "called built-in tool": (
        [
            user("Look."), assistant("", tool_calls=calls(("wolfram_alpha", {"query": "1 + 1", "plain": "yes"}))),
            result("2", name="wolfram_alpha"),
        ],
        {"builtin_tools": ["wolfram_alpha"], "tools": [WEATHER]},
    ),
    "custom tools": (HELLO, {"custom_tools": [WEATHER], "xml_tools": [WEATHER], "python_tools": ["def f(): pass"]}),
}


def contexts():
    """(name, context) of the whole matrix."""
    for name, (messages, others) in CONVERSATIONS.items():
        for add_generation_prompt in (False, True):
            yield f"{name}{', prompt' if add_generation_prompt else ''}", {
                "messages": messages, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt,
                **SPECIAL_TOKENS, **others,
            }
