#ifndef FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_TEMPLATES_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_TEMPLATES_H_

namespace fastdecode {

// Templates that show every field of a chat in the ways of several families of models. What they write depends on the
// shape of a chat alone: which fields are there, which are empty, how many items there are.

inline constexpr char kChatMlTemplate[] = R"({%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools or [] %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\nAnswer as <tool_call>{"name": ...}</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role }}{% if message.name %} name={{ message.name }}{% endif %}{{ '\n' }}
    {%- if message.reasoning_content %}
        {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for tool_call in message.tool_calls %}
        {{- '\n<tool_call>\n{"name": "' ~ tool_call.function.name ~ '", "arguments": ' }}
        {{- tool_call.function.arguments | tojson }}
        {{- '}\n</tool_call>' }}{{ tool_call.id }}
    {%- endfor %}
    {%- if message.role == 'tool' %}<tool_response>{{ message.tool_call_id }}</tool_response>{% endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- for document in documents or [] %}{{ document.title }}<|im_end|>{{ document.text }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ extra }}{% endif %})";

inline constexpr char kLlama3Template[] = R"({{- bos_token }}
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + ((message['content'] or '') | trim) + '<|eot_id|>' %}
    {{- content }}
    {%- for tool_call in message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + tool_call.function.name + '", "parameters": ' }}
        {{- tool_call.function.arguments | tojson }}
        {{- '}' + '<|eot_id|>' }}
    {%- endfor %}
{%- endfor %}
{%- if documents %}{{ documents | tojson }}<|eot_id|>{% endif %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{{ extra }}{% endif %})";

inline constexpr char kMistralTemplate[] = R"({{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' or message.role == 'user' %}
        {%- if tools %}[AVAILABLE_TOOLS]{{ tools | string }}[/AVAILABLE_TOOLS]{% endif %}
        {{- '[INST] ' + (message.content or '') + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for tool_call in message.tool_calls %}
            {{- (tool_call | tojson)[:-1] + ', "id": "' ~ tool_call.id ~ '"}' }}{{ ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message.thinking %}
        {{- '[THINK]' ~ message.thinking ~ '[/THINK]' ~ message.content ~ eos_token }}
    {%- else %}
        {{- ' ' ~ message.content | trim }} {{ message.role }}{{ message.tool_call_id }}{{ eos_token }}
    {%- endif %}
{%- endfor %}
{%- for document in documents or [] %}[INST]{{ document['text'] }}{{ document.title }}[/INST]{% endfor %}{{ extra }})";

inline constexpr char kDeepSeekTemplate[] =
    R"({% set ns = namespace(system='', first=true) %}{{ bos_token }}
{%- for message in messages %}{% if message.role == 'system' %}{% set ns.system = ns.system + (message.content or '') %}{% endif %}{% endfor %}
{{- ns.system }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '<｜User｜>' + (message.content or '') }}
    {%- elif message.role != 'system' %}{{ '<｜Assistant｜>' }}{{ message.content }}{{ message.role }}{{ message.name }}
        {%- for call in message.tool_calls %}{{ '<｜tool▁call▁begin｜>' ~ call.type ~ '<｜tool▁sep｜>' ~ call.function.name ~ '\n```json\n' ~ (call.function.arguments | string) ~ '\n```<｜tool▁call▁end｜>' }}{% endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{% for key, value in tool.function.items() %}<｜User｜>{{ key }}{{ value }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<｜Assistant｜><think>
{{ extra }}{% endif %})";

// It composes the marks of turns.
inline constexpr char kPhiTemplate[] =
    R"({% for message in messages %}{{ '<|' + message['role'] + '|>' ~ message['content'] + '<|end|>' if message.content is string else '<|' ~ message.role ~ '|><|end|>' }}
{%- for call in message.tool_calls %}<|{{ call.function.name }}|>{{ call.function.arguments }}<|end|>{% endfor %}
{%- endfor %}{% for tool in tools or [] %}<|tool|>{{ tool.function.description }}<|/tool|>{{ tool }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{{ extra }}{% endif %}{{ documents | tojson }})";

// It does with contents what can be done with texts, between own text that begins or ends a name. OPEN, CLOSE, NAME and
// END stand for a token: OPEN + NAME + CLOSE = END.
inline constexpr char kManglingTemplate[] = R"(
{%- macro turn(text, mark='CLOSE') %}OPEN{{ text }}{{ mark }}{{ caller() if caller else '' }}{% endmacro %}
{%- for message in messages %}
{%- set content = message.content | default('') %}
{%- set who = message.role ~ message.name | default('') %}
{{ content[1:] }}{{ content[:-1] }}{{ content[1:-1] }}{{ content[::-1] }}{{ content[::2] }}{{ content[0] ~ content[1:] }}END
{{ content | list | join }}{{ content | list | join('') | upper }}{{ content.split('|') | join('|') }}{{ content.split() | join('|') }}
{{ content | replace('|', '') }}{{ content | replace('<', 'OPEN') }}{{ content.replace('>', 'CLOSE') }}{{ content.replace(' ', 'OPEN', 1) }}
{{ content | reverse }}{{ content | upper }}{{ content | lower }}{{ content | title }}{{ content | capitalize }}{{ content.swapcase() }}
{%- set block %}OPEN{{ content }}CLOSE{% endset %}{{ block }}{{ block | trim | reverse | reverse }}{{ block[1:] }}
{%- filter upper %}OPEN{{ content }}CLOSE{% endfilter %}{% filter lower | trim %}{{ content }}CLOSE{% endfilter %}
{{ turn(content) }}{{ turn(who, mark='') }}{{ turn(content ~ who) }}{% call turn(who) %}{{ content }}CLOSE{% endcall %}
{{ 'OPEN%sCLOSE' % content }}{{ 'OPEN%-12sCLOSE%r' | format(who, content) }}{{ '%(x)sCLOSE' % {'x': content} }}
{{ 'OPEN{}CLOSE'.format(who) }}{{ '{0:>12}{0!r}CLOSE'.format(content) }}{{ 'OPEN{x}CLOSE'.format(x=content[3:]) }}END
{{ 'OPEN' + who + 'CLOSE' }}{{ ['OPEN', who, 'CLOSE'] | join }}{{ ('OPEN', content) | join(who) }}{{ 'OPEN' ~ content ~ 'CLOSE' }}
{{ message }}{{ message | tojson }}{{ message | string | reverse }}{{ message | dictsort }}{{ message.keys() | join('OPEN') }}
{%- for key, value in message.items() %}OPEN{{ key }}CLOSE{{ value }}{% endfor %}END
{{ content | e }}{{ (content | e).unescape() if content is escaped }}{{ content | urlencode }}{{ content | center(20) }}{{ content | indent(first=true) }}
{{ content | truncate(9, true, 'CLOSE') }}{{ [content, who] | map('lower') | join('|') }}{{ [content, who] | sort | join }}{{ content | first }}{{ content | last }}
{{ content.partition('|') | join }}{{ content.rsplit('>', 1) | join('CLOSE') }}{{ content.splitlines() | join }}{{ content.strip('<') }}{{ content.lstrip() ~ 'CLOSE' }}
{{ content.removeprefix('<') }}{{ content.zfill(20) }}{{ (content * 2)[1:] }}{{ content | batch(2) | map('join') | join('OPEN') }}{{ content | unique | join }}
{%- for c in content %}{{ c }}{% endfor %}CLOSE{% for c in content | slice(3) %}{{ c | join }}{% endfor %}
{%- for call in message.tool_calls %}OPEN{{ call.function.name ~ 'CLOSE' }}{{ call.function.arguments | tojson(indent=2) }}{{ call.id | upper }}{{ call }}END{% endfor %}
{%- endfor %}END
{{ tools | tojson | replace('"', '') }}{{ documents | map(attribute='title') | join('CLOSE') if documents }}OPEN{{ extra }}CLOSE{{ extra | reverse | list | reverse | join }}END)";

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_TEMPLATES_H_
