"""Cases: what chat templates do, one habit each."""

from template_cases import templates

MESSAGES = [
    {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi <b>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYo", "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": {"x": 1, "y": "é"}}},
        {"id": "2", "function": {"name": "g", "arguments": "{}"}},
    ]},
    {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, {"role": "user", "content": [
        {"type": "text", "text": "look"}, {"type": "image"}, {"type": "text", "text": "here"},
    ]},
]
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "Does \"f\".\nWell.", "parameters": {
        "type": "object", "required": ["x"], "properties": {
            "x": {"type": "integer", "description": "é"}, "items": {"type": ["string", "null"], "enum": ["a", "b"]},
        },
    }}},
]

GROUPS = {
    "chat/loops": templates(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m.content|string + '\\n' }}{% endfor %}",
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}none{% endif %}{{ m.role }} {% endfor %}",
        "{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{{ "
        "loop_messages|length }}",
        "{% set s = messages[0]['content']|trim %}{% set messages = messages[1:] %}{{ s }}{{ messages[0].role }}",
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = "
        "loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}",
        "{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{{ i }}{{ m.role[0] }} {% "
        "endfor %}",
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}x{% endif %}{{ loop.index }}{% "
        "endfor %}",
        "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != "
        "'tool' %}<r>{% endif %}{{ m.content }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}</r>{% "
        "endif %}{% endif %}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {% endfor %}",
        "{% for m in messages %}{% if loop.previtem and loop.previtem.role == m.role %}same{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.role if not loop.last else m.role ~ '!' }}{{ ', ' if not loop.last }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.role }} {% endfor %}",
        "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls|length }}{% break %}{% endif %}.{% endfor %}",
        "{% for m in messages -%}\n    {%- if m.role == 'user' %}\nU\n    {%- elif m.role == 'tool' -%}\n  T  \n    "
        "{%- endif %}\n{%- endfor %}",
        "{% for message in messages %}{{ raise_exception('no ' + message.role) if message.role == 'critic' }}{% "
        "endfor %}ok",
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('Bad role: ' ~ "
        "m.role) }}{% endif %}{% endfor %}",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ (messages|rejectattr('role', 'in', "
        "['tool'])|list)[-1].role }}",
        "{{ messages|map(attribute='role')|unique|join(' ') }}",
        "{{ messages[-1].role }} {{ messages|last is mapping }} {{ (messages|first).role }}",
        "{% if messages[-1]['role'] == 'user' and add_generation_prompt %}<A>{% endif %}{{ add_generation_prompt is "
        "defined }}",
        messages=MESSAGES,
    ),
    "chat/contents": templates(
        "{% for m in messages %}{% if m.content is string %}S{% elif m.content is iterable %}L{% else %}?{% endif "
        "%}{% endfor %}",
        "{% macro text(c) %}{% if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}{% for p in c "
        "%}{% if p.type == 'text' %}{{ p.text }}{% else %}<{{ p['type'] }}>{% endif %}{% endfor %}{% endif %}{% "
        "endmacro %}{% for m in messages %}[{{ text(m.content) }}]{% endfor %}",
        "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}|{{ "
        "messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}",
        "{% if '</think>' in messages[2].content %}{{ messages[2].content.split('</think>', 1)[1]|trim }}{% endif %}",
        "{% set content = messages[0].content.strip() if messages[0].content else '' %}[{{ content }}]",
        "{{ messages[5].content|selectattr('type', 'equalto', 'text')|map(attribute='text')|join('\\n') }}",
        "{{ messages[5]['content'][0]['text'] }}{{ messages[5].content[1].text is defined }}",
        "{{ messages[1].reasoning_content is defined and messages[1].reasoning_content }}{{ messages[1].get('x', "
        "'none') }}",
        "{% set c = messages[1].content %}{{ c.startswith('Hi') and c.endswith('>') }}{{ c|e }}{{ c.replace('<b>', "
        "'') }}",
        "{{ '<s>' + messages[1].content|trim + '</s>' }}{{ ('[' + messages[0].content + ']')|trim }}",
        "{{ 'x' + messages[5].content }}", "{{ messages[0].content ~ messages[3].content ~ 1 }}",
        "{{ messages[1].content if messages[1].content is not none }}{{ messages[9].content }}",
        "{{ messages[1]['content'][:2] ~ messages[1]['content'][-3:] }}",
        messages=MESSAGES,
    ),
    "chat/tools": templates(
        "{% for t in tools %}{{ t|tojson }}\n{% endfor %}",
        "{% for t in tools %}{{ t|tojson(indent=4) }}\n\n{% endfor %}", "{{ tools|tojson }}",
        "{{ tools|map(attribute='function')|list|tojson(indent=2) }}",
        "{{ tools|tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ tools|map(attribute='function.name')|join(', ') }}",
        "{% for t in tools %}{% set f = t.function if t.function is defined else t %}{{ f.name }}: {{ "
        "f.description|replace('\\n', ' ') }}{% endfor %}",
        "{% for t in tools %}{% for k, v in t.function.parameters.properties.items() %}{{ k }}{{ '' if k in "
        "t.function.parameters.required else '?' }}:{{ v.type if v.type is string else v.type|join('|') }} {% "
        "endfor %}{% endfor %}",
        "{% for k in tools[0].function.parameters.properties %}{{ k }} {% endfor %}",
        "{% for t in tools %}{% for k, v in t.function.items() if k != 'parameters' %}{{ loop.index }}{{ k }}={{ "
        "v|tojson }} {% endfor %}{% endfor %}",
        "{% for call in messages[2].tool_calls %}{% set call = call.function %}{{ call.name }}({{ call.arguments if "
        "call.arguments is string else call.arguments|tojson }}){% endfor %}",
        "{% for call in messages[2].tool_calls %}{% for k, v in (call.function.arguments or {})|items %}{{ k }}={{ "
        "v }}{% endfor %}{% endfor %}",
        "{% for k, v in messages[2].tool_calls[0].function.arguments|items %}{{ k }}={{ v|tojson if v is not string "
        "else v }};{% endfor %}",
        "{{ {'name': messages[2].tool_calls[0].function.name, 'arguments': "
        "messages[2].tool_calls[0].function.arguments}|tojson }}",
        "{%- if tools %}{{ '# Tools\\n' }}{%- endif %}{{ tools is not none and tools is defined }}",
        "{% if 'tool_calls' in messages[2] and messages[2]['tool_calls'] is not none %}{{ "
        "messages[2].tool_calls[-1].id }}{% endif %}",
        "{% set p = tools[0].function.parameters.properties['items'] %}{{ p.enum|tojson }}{{ 'null' in p.type }}{{ "
        "p.type is iterable }}",
        "{{ tools[0].function.parameters.properties.items.type }}",
        "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools is none }}",
        "{% if not builtin_tools is defined %}{% set builtin_tools = [] %}{% endif %}{{ builtin_tools + ['a'] }}",
        messages=MESSAGES, tools=TOOLS,
    ),
    "chat/dates_and_switches": templates(
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}",
        "{% if not date_string is defined %}{% set date_string = strftime_now('%Y-%m-%d') %}{% endif %}{{ "
        "date_string }}",
        "{% set today = strftime_now('%Y-%m-%d').split('-') %}{{ today[2] ~ '.' ~ today[1] }}",
        "{{ '/no_think' if (enable_thinking is defined and not enable_thinking) else '/think' }}",
        "{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}",
        "{% if not reasoning_effort is defined %}{% set reasoning_effort = 'medium' %}{% endif %}{{ "
        "reasoning_effort }}",
        "{{ bos_token }}{{ eos_token|default('</s>') }}{{ unk_token }}",
        "{{- bos_token }}\n{%- if true %}\n    {{- 'x' }}\n{%- endif %}",
        enable_thinking=False, bos_token="<s>",
    ),
}
