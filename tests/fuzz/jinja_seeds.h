#ifndef FASTDECODE_TESTS_FUZZ_JINJA_SEEDS_H_
#define FASTDECODE_TESTS_FUZZ_JINJA_SEEDS_H_

#include <string>
#include <vector>

namespace fastdecode {

// Templates that use everything which chat templates are made of.
inline std::vector<std::string> JinjaSeeds() {
  return {
      R"({{- bos_token }}{%- for m in messages if m.role != 'x' -%}<|{{ m['role'] }}|>
{{ m.content | trim }}{% if not loop.last %}{{ loop.index0 ~ eos_token }}{% elif loop.first %}!{% else %}?{% endif %}
{%- else %}none{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %})",
      R"({% macro m(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{% macro n(a, b='x') %}{{ varargs }}{{ kwargs }}{{ caller() }}{% endmacro %}
{% call(q) n(1, 2, 3, k=4) %}[{{ q }}]{% endcall %}{{ n.name }}{% set ns = namespace(i=0, s='') %}
{% for k, v in d.items() %}{% set ns.i = ns.i + loop.revindex %}{% set ns.s = ns.s ~ k ~ v|tojson(indent=2) %}
{% if loop.index > 2 %}{% break %}{% endif %}{% continue %}{% endfor %}{{ ns.i }}{{ ns.s[::-1] }})",
      R"({% set x %}block {{ 1 + 2 * 3 // 4 % 5 ** 2 }}{% endset %}{{ x[1:-1:2] }}{{ 'a' 'b' "\x41\u00e9\n" }}
{{ 1 < 2 <= 3 != 4 and not false or none is defined }}{{ 'a' in 'abc' }}{{ 2 not in [1, (2,), {'k': 1.5e3}] }}
{% filter upper | replace('A', 'b') %}text{% endfilter %}{% raw %}{{ raw }}{% endraw %}{# comment #}
{% with a = 1, b = 2 %}{{ a if b else c }}{% endwith %}{% generation %}g{% endgeneration %})",
      R"({{ '%s|%5.2f' % ('a', 1.5) }}{{ '%(k)d' % {'k': 1} }}{{ '{0:>10}{0!r}{1[k]}'.format('b', {'k': 1}) }}{{ 'a,b'.split(',', 1)|join('-') }}
{{ [3, 1, 2]|sort(reverse=true)|map('string')|list }}{{ l|selectattr('a', 'equalto', 1)|map(attribute='b', default=0)|list }}
{{ l|groupby('a') }}{{ range(1, 10, 3)|list|batch(2, 'x')|list }}{{ d|dictsort }}{{ 'x'|indent(2, true) }}
{{ strftime_now('%Y-%m-%d') }}{{ cycler(1, 2).next() }}{{ joiner()() }}{{ raise_exception('stop') if false }})",
      R"({%- for x in l recursive %}{{ x.a }}{{ loop(x.l) if x.l else loop.depth }}{{ loop.cycle(1, 2) }}{{ loop.changed(x) }}
{{ loop.previtem.a if loop.previtem is defined }}{{ loop.nextitem }}{%- endfor -%}{{ x|default('d', true)|e|safe ~ '<' }}
{{ 'Straße'.upper().title().swapcase().center(20, '*') }}{{ ' a b '.strip().partition(' ') }}{{ 'abc'.find('c') }}
{{ 1.0 }}{{ -0.5 }}{{ 1e100 }}{{ 12345678901234567890 }}{{ true }}{{ [none, 'a"\'b', dict(a=1)] }}{{ "٣"|int }}{{ 2.675|round(2) }})",
      R"({% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**d) }}{{ dict(**d) }}{{ namespace(**d) }}{{ dict.fromkeys('ab', 1) }}
{{ '{:{}}|{:012_x}|{:,}'.format(5, '*^+6,', 74565, 1e6) }}{{ '%-5s|%05d|%c' % ('a', -5, 60) }}{{ bos_token.format(a=1) }}
{{ 'aabaab'.rfind('aab') }}{{ 'aXbX'.rsplit('X', 1) }}{{ 'abcdef'[4:0:-2] }}{{ l[1:]|reverse|list }}{{ l|map('map', 'upper')|list }}
{% for ((i)), (j) in [(1, 2)] %}{{ loop|list }}{{ loop.previtem }}{% endfor %}{{ ((1 + (2 + (3))) ~ 4)|int }}{{ 15|round(-1) }})",
  };
}

// Variables that these templates read.
inline std::string JinjaSeedContext() {
  return R"({"messages":[{"role":"user","content":" <|x|> é "},{"role":"assistant","content":"b"}],"bos_token":"<s>",
"eos_token":"</s>","add_generation_prompt":true,"d":{"a":1,"b":[1.5,null,true],"items":"x"},
"l":[{"a":1,"b":"x","l":[{"a":2}]},{"a":1,"b":"y"}]})";
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_FUZZ_JINJA_SEEDS_H_
