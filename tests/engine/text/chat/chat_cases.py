"""The cases of make_chat_goldens.py: a model's files, and chats. `fails`: transformers refuses the chat."""

import json

SPECIAL_TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}

# ---- A model's files


def _folder(name, **files):
    names = {"jinja": "chat_template.jinja", "config": "tokenizer_config.json", "map": "special_tokens_map.json"}
    texts = {}
    for key, value in files.items():
        path = names.get(key, f"additional_chat_templates/{key}.jinja")
        texts[path] = value if isinstance(value, str) else json.dumps(value)
    return {"name": name, "files": texts}


def _added(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, **flags}


_LISTED = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "listed with tools"}]
_DECODER = {"1100": {"content": "<|endoftext|>", "special": True}}
_ALL_SEVEN = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}

FILES = [
    _folder("file before everything", jinja="file", config={"chat_template": "configured"}),
    _folder("file and further files", jinja="file", tool_use="with tools", rag="documents"),
    _folder("file with line ends", jinja="a\n{{ messages }}\n\n"),
    _folder("further files before the configuration", tool_use="with tools", config={"chat_template": "configured"}),
    _folder("configured text", config={"chat_template": "configured {{ 'é' }}"}),
    _folder("configured list", config={"chat_template": _LISTED}),
    _folder("configured object", config={"chat_template": {"default": "first", "rag": "second"}}),
    _folder("tokens as strings", config={"chat_template": "x", **_ALL_SEVEN}),
    _folder("tokens as objects", config={"chat_template": "x", "bos_token": _added("<b>"), "eos_token": _added("<e>")}),
    _folder("tokens of the map", jinja="x", map={"bos_token": "<m>", "eos_token": {"content": "<e>"}}),
    _folder("map against configuration", jinja="x", config={"bos_token": "<c>", "pad_token": "<p>"},
            map={"bos_token": "<m>"}),
    _folder("map where the configuration has null", jinja="x", config={"bos_token": None}, map={"bos_token": "<m>"}),
    _folder("map beside a list of added tokens", jinja="x",
            config={"bos_token": "<c>", "added_tokens_decoder": _DECODER}, map={"bos_token": "<m>", "eos_token": "<e>"}),
    _folder("tokens that are null", jinja="x", config={"bos_token": None, "eos_token": "<e>"}),
]

# ---- Chats

# Shows all that a template is given.
SHOW = (
    "{% for message in messages %}{{ message | tojson }}\n{% endfor %}"
    "{{ tools | tojson }} {{ documents | tojson }} {{ add_generation_prompt }} {{ bos_token }}{{ eos_token }}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = CHATML.replace("message.content", "message.content | trim")
PARTS = CHATML.replace("{{ message.content }}", "{% for part in message.content %}[{{ part.text }}]{% endfor %}")
BOTH = CHATML.replace(
    "{{ message.content }}",
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}",
)
CALLS = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function.name }}("
    "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value | tojson }};{% endfor %})</tool_call>"
    "{% endfor %}{% endfor %}"
)
HI = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": ["é", None, True, 1.5]}}}]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def _chat(name, template, messages, also=(), fails=False, **more):
    templates = template if isinstance(template, dict) else {"default": template}
    case = {"name": name, "templates": templates, "input": {"messages": messages, **more}}
    if also:
        case["also"] = [{"messages": other, **more} for other in also]
    return {**case, "fails": True} if fails else case


def _continued(name, template, content, fails=False):
    first = user([{"type": "text", "text": "Hi"}]) if template == PARTS else HI
    return _chat(name, template, [first, assistant(content)], fails=fails, continue_final_message=True,
                 add_generation_prompt=False)


def _call(arguments):
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


NULLS = {"role": "assistant", "content": None, "name": None, "tool_calls": None, "x": {"kept": None}, "list": [None]}
DEFAULT_AND_TOOLS = {"default": "plain", "tool_use": "with {{ tools | length }} tools", "rag": "x"}

CHATS = [
    _chat("turns", CHATML, [{"role": "system", "content": "Be\nbrief."}, HI, assistant(" a \n"), user("")]),
    _chat("no generation prompt", CHATML, [HI], add_generation_prompt=False),
    _chat("all that is given", SHOW, [{"name": "a", "content": "b", "role": "user", "z": [1, 2.0, {"é": "</s>"}]}]),
    _chat("fields that are null", SHOW, [HI, NULLS]),
    _chat("a message without content", SHOW, [HI, {"role": "assistant"}]),
    _chat("empty content", SHOW, [user("")]),
    # Reasoning
    _chat("reasoning_content", SHOW, [assistant("a", reasoning_content="r")]),
    _chat("reasoning_content in front", SHOW, [{"reasoning_content": "r", "role": "assistant", "content": "a"}]),
    _chat("thinking", SHOW, [assistant("a", thinking="t")]),
    _chat("reasoning", SHOW, [assistant("a", reasoning="r")]),
    _chat("reasoning under two names", SHOW, [assistant("a", reasoning="r", thinking="t")]),
    _chat("reasoning under three names", SHOW, [assistant("a", reasoning="r", thinking="t", reasoning_content="c")]),
    _chat("reasoning that is null", SHOW, [assistant("a", reasoning_content=None, thinking="t")]),
    _chat("reasoning that is empty", SHOW, [assistant("a", reasoning_content="", thinking="t")]),
    # Tools and documents
    _chat("tools", SHOW, [HI], tools=TOOLS),
    _chat("an empty list of tools", SHOW, [HI], tools=[]),
    _chat("tools that are null", SHOW, [HI], tools=None),
    _chat("documents", SHOW, [HI], documents=[{"title": "t", "text": "x"}]),
    _chat("an empty list of documents", SHOW, [HI], documents=[]),
    _chat("documents that are null", SHOW, [HI], documents=None),
    _chat("a template for tools, without any", DEFAULT_AND_TOOLS, [HI]),
    _chat("a template for tools", DEFAULT_AND_TOOLS, [HI], tools=TOOLS),
    _chat("a template for tools, with an empty list", DEFAULT_AND_TOOLS, [HI], tools=[]),
    _chat("a default alone, with tools", {"default": "default", "rag": "x"}, [HI], tools=TOOLS),
    # Calls of tools: clients have the arguments as JSON in a string, templates walk through an object.
    _chat("arguments of calls", CALLS, [HI, assistant("c", tool_calls=[_call({"b": [1, "é"], "a": {"c": None}}), _call({})])],
          also=[[HI, assistant("c", tool_calls=[_call('{"b": [1, "\\u00e9"], "a": {"c": null}}'), _call("{}")])],
                [HI, assistant("c", tool_calls=[_call(' {"b":[1,"é"],"a":{"c":null}}\n'), _call("")])],
                [HI, assistant("c", tool_calls=[_call({"b": [1, "é"], "a": {"c": None}}), _call(None)])]]),
    _chat("arguments that are no object stay text", SHOW,
          [assistant("c", tool_calls=[_call("not JSON"), _call("[1]"), _call('"s"'), _call("{} x")])]),
    # Content
    _chat("text for a template of texts", CHATML, [user("a\nb")], also=[
        [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
        [user([{"type": "text", "text": "a\nb"}])],
        [user([{"type": "refusal", "refusal": "a"}, {"type": "text", "text": "b", "cache": {}}])]]),
    _chat("an empty list for a template of texts", CHATML, [user("")], also=[[user([])]]),
    _chat("parts for a template of parts", PARTS,
          [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], also=[
          [user([{"type": "refusal", "refusal": "a"}, {"type": "text", "text": "b"}])]]),
    _chat("one part for a template of parts", PARTS, [user([{"type": "text", "text": "a\nb"}])], also=[[user("a\nb")]]),
    _chat("parts for a template of both", BOTH, [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]),
    _chat("text for a template of both", BOTH, [user("a")]),
    # Roles
    _chat("developer where it is unknown", CHATML, [{"role": "system", "content": "s"}, HI],
          also=[[{"role": "developer", "content": "s"}, HI]]),
    _chat("developer where it is known", "{% if messages[0].role == 'developer' %}D{% endif %}{{ messages[0].content }}",
          [{"role": "developer", "content": "s"}, HI]),
    _chat("an unknown role", CHATML, [{"role": "critic", "content": "s"}]),
    # Going on with the last message
    _continued("go on", CHATML, "The answer"),
    _continued("go on behind white space", CHATML, "The answer \n "),
    _continued("go on behind white space that is cut", TRIMMED, "  The answer \n\t"),
    _continued("go on where nothing is cut", TRIMMED, "The answer"),
    _continued("go on after white space alone", CHATML, " \n"),
    _continued("go on after no text", CHATML, ""),
    _continued("go on with text that is there twice", CHATML, "Hi"),
    _continued("go on in a template of parts", PARTS, [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]),
    _continued("go on in a template of both", BOTH, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    _continued("go on with what a template drops", CHATML.replace("message.content", "message.content[:4]"), "The answer",
               fails=True),
    _continued("go on with what a template does not read", "{{ messages[0].content }}", "The answer", fails=True),
    _continued("go on with what a template turns round", CHATML.replace("message.content", "message.content | reverse"),
               "The answer", fails=True),
    _continued("go on with what a template writes in capitals", CHATML.replace("message.content", "message.content | upper"),
               "The answer", fails=True),
    _continued("go on with a message without content", CHATML, None, fails=True),
    _continued("go on with a message without parts", PARTS, [], fails=True),
    _chat("go on and begin anew", CHATML, [HI, assistant("a")], fails=True, continue_final_message=True),
    # Variables, and errors
    _chat("variables", "{{ enable_thinking }} {{ n + 1 }} {{ list | join(',') }} {{ o.a.b }} {{ missing is defined }}", [HI],
          variables={"enable_thinking": False, "n": 2, "list": ["a", "b"], "o": {"a": {"b": "é"}}}),
    _chat("raise_exception", "{{ raise_exception('roles must alternate') }}", [HI], fails=True),
    _chat("an error in a template", "{{ messages[7].content.nothing }}", [HI], fails=True),
    _chat("no messages", CHATML, [], fails=True),
    _chat("a message that is no object", CHATML, ["Hi"], fails=True),
    _chat("a document that is no object", CHATML, [HI], fails=True, documents=["x"]),
    _chat("a tool that is no object", CHATML, [HI], fails=True, tools=["x"]),
]
