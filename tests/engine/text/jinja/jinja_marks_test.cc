// Which characters of a rendered text the template's author wrote, and which came with its variables.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"

namespace fastdecode::jinja {
namespace {

// The text with foreign stretches in braces, which no template here prints.
std::string Marked(const std::string& source, const std::string& context) {
  const auto parsed = Template::Parse("t", source);
  if (!parsed.ok()) return std::string(parsed.status().message());
  const absl::StatusOr<Text> text = (*parsed)->Render(LoadJson(context, /*foreign=*/true).dict(), 0);
  if (!text.ok()) return std::string(text.status().message());
  std::string marked;
  size_t at = 0;
  for (const Text::Span& span : text->foreign()) {
    marked +=
        text->bytes().substr(at, span.begin - at) + "{" + text->bytes().substr(span.begin, span.end - span.begin) + "}";
    at = span.end;
  }
  return marked + text->bytes().substr(at);
}

constexpr char kContext[] = R"({"x": "ab cd", "y": "ABC", "n": 42, "f": 1.5, "t": true, "l": ["p", "q"],
                                "d": {"key": "value"}, "ws": "  in  ", "lines": "1\n2", "html": "<&>",
                                "fmt": "-{a:<<1.0}{a:|<1.0}{a[1]}{a:.2}-", "fill": "0>5", "zeros": "+06,",
                                "pct": "%c%03d%.1s%%"})";

TEST(JinjaMarks, CharactersKeepTheirOrigin) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"<s>{{ x }}</s>", "<s>{ab cd}</s>"},
      {"{{ '<' ~ x ~ '>' }}", "<{ab cd}>"},
      {"{{ '<' + x + '>' }}", "<{ab cd}>"},
      {"{{ ('<' + x)[1:4] }}", "{ab }"},
      {"{{ ('<<' + x)[1:4] }}", "<{ab}"},
      {"{{ ('<' + x)[::-1] }}", "{dc ba}<"},
      {"{{ ('<' + x)[0] }}{{ ('<' + x)[1] }}", "<{a}"},
      {"{{ x|upper }}{{ 'own'|upper }}", "{AB CD}OWN"},
      {"{{ (x ~ 'own')|title }}", "{Ab Cd}own"},
      {"{{ (x ~ 'OWN')|lower }}{{ y.lower() }}{{ y|capitalize }}", "{ab cd}own{abcAbc}"},
      {"{{ ws|trim }}{{ ws.strip() }}{{ (' ' ~ ws ~ ' ')|trim }}", "{ininin}"},
      {"{{ x.split(' ')|join('|') }}", "{ab}|{cd}"},
      {"{{ ('a ' ~ y).split() | join('') }}", "a{ABC}"},
      {"{{ l|join(', ') }}{{ ', '.join(l) }}", "{p}, {qp}, {q}"},
      {"{{ x|replace('b', '<own>') }}", "{a}<own>{ cd}"},
      {"{{ '<own>'|replace('own', y) }}", "<{ABC}>"},
      {"{{ x.replace(' ', y) }}", "{abABCcd}"},
      {"{{ '%s=%s'|format('k', x) }}{{ '%5s' % y }}", "k={ab cd}  {ABC}"},
      {"{{ '{}-{k}'.format(x, k='own') }}{{ '{:>5}'.format(y) }}", "{ab cd}-own  {ABC}"},
      {"{{ x.format('own') }}", "{ab cd}"},
      {"{{ x|tojson }}{{ 'own'|tojson }}", "{\"ab cd\"\"}own{\"}"},
      {"{{ {'k': x}|tojson }}", "{{\"}k{\": \"ab cd\"}}"},
      {"{{ d }}{{ ['own', y] }}", "{{'key': 'value'}['}own{', 'ABC']}"},
      {"{{ n }}{{ n + 1 }}{{ 1 + 1 }}{{ f }}{{ t }}{{ n|string }}", "{4243}2{1.5True42}"},
      {"{{ x|length }}{{ l|length }}{% for i in l %}{{ loop.index }}{% endfor %}", "5212"},
      {"{% set s %}<{{ x }}>{% endset %}{{ s }}{{ s[1:3] }}", "<{ab cd}>{ab}"},
      {"{% set s | upper %}o{{ x }}{% endset %}{{ s }}", "O{AB CD}"},
      {"{% filter upper %}o{{ x }}{% endfilter %}", "O{AB CD}"},
      {"{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(x) }}{{ m('o') }}", "[{ab cd}][o]"},
      {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}o{{ y }}{% endcall %}", "<o{ABC}>"},
      {"{% set ns = namespace(s='') %}{% for i in l %}{% set ns.s = ns.s ~ '<' ~ i %}{% endfor %}{{ ns.s }}",
       "<{p}<{q}"},
      {"{% for c in ('<' ~ y) %}{{ c }}.{% endfor %}", "<.{A}.{B}.{C}."},
      {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "{key}={value}"},
      {"{{ (x ~ 'o')|list|last }}{{ x|first }}", "o{a}"},
      {"{{ lines|indent(2) }}", "{1}\n  {2}"},
      {"{{ html|e }}{{ ('<' ~ html)|e }}", "{&lt;&amp;&gt;}&lt;{&lt;&amp;&gt;}"},
      {"{{ x|default('o') }}{{ nosuch|default('o') }}", "{ab cd}o"},
      {"{{ l|map('upper')|join }}{{ l|reverse|join('') }}{{ (l + ['o'])|sort|join('') }}", "{PQqp}o{pq}"},
      {"{{ y * 2 }}{{ 'o' * 2 }}{{ y.center(5, '*') }}{{ y.zfill(5) }}", "{ABCABC}oo*{ABC}*00{ABC}"},
      {"{{ x.partition(' ')|join('/') }}{{ x.rsplit(' ', 1)[1] }}", "{ab}/{ }/{cdcd}"},
      {"{{ y.removeprefix('A') }}{{ ('o' ~ y).removeprefix('o') }}", "{BCABC}"},
      {"{{ y if t else 'o' }}{{ y or 'o' }}{{ '' or y }}", "{ABCABCABC}"},
      {"{{ d.get('key') }}{{ d['key'] }}{{ d.key }}{{ d.get('z', 'o') }}", "{valuevaluevalue}o"},
      {"{{ x|truncate(3, true, '..', 0) }}", "{a}.."},
      {"{{ strftime_now(x) }}{{ '12'|int }}{{ '12' ~ n|int }}{{ (n|string)|int }}", "{ab cd}1212{4242}"},
      {"{{ dict(k=x)['k'] }}{{ {x: 'o'}|list|first }}", "{ab cdab cd}"},
      {"{{ x|groupby(0)|map('first')|join('') if false else y }}", "{ABC}"},
      {"{{ dict(**{x: 1}) }}", "{{'ab cd': }1{}}"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**{x: 1, 'o': 2}) }}", "{{'ab cd': }1{, '}o{': }2{}}"},
      {"{{ namespace({x: 1}) }}{{ namespace(**{x: 1}) }}", "<Namespace {{'ab cd': }1{}}><Namespace {{'ab cd': }1{}}>"},
      {"{{ dict({x: 1}, **{y: 1})|join('|') }}{{ dict(o=x)|join }}", "{ab cd}|{ABC}o"},
      {"{{ range(n - 40)|join(',') }}{{ range(2)|join(',') }}{{ range(n) }}{{ range(0, 9, n)[0] }}",
       "{0},{1}0,1{range(0, 42)0}"},
      {"{{ fmt.format(a='today') }}{{ '{a:<<1.0}{a:|<1.0}'.format(a='today') }}", "{-<|oto-}<|"},
      {"{{ '{:{}}'.format('o', fill) }}{{ '{:0>5}'.format('o') }}", "{0000}o0000o"},
      {"{{ '{:{}}'.format(1234, zeros) }}{{ '{:+06,}'.format(1234) }}", "{+1,234}+1,234"},
      {"{{ pct % (60, 5, 'own') }}{{ '%c%03d%.1s%%' % (60, 5, 'own') }}", "{<005o%}<005o%"},
      {"{{ x.split(' ', 1)|last }}{{ ('o' ~ x)[::2] }}{{ (x ~ 'o')|reverse }}", "{cd}o{bc}o{dc ba}"},
      {"{{ [x, 'o']|first }}{{ [x, 'o']|last }}{{ (x ~ 'o')|last }}{{ ('o' ~ x)|first }}", "{ab cd}ooo"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_EQ(Marked(source, kContext), expected) << source;
  }
}

// Nothing that a request sends becomes the template's own, whatever the template does with it.
TEST(JinjaMarks, AForeignCharacterStaysForeignThroughEveryFilterAndMethod) {
  // A character that no template below writes.
  const std::string context = R"({"x": "\u2603a \u2603b\n\u2603c"})";
  const char* const kExpressions[] = {
      "x|capitalize",
      "x|center(30)",
      "x|e",
      "x|forceescape",
      "x|indent(3)",
      "x|lower",
      "x|upper",
      "x|title",
      "x|trim",
      "x|truncate(6, true, '', 0)",
      "x|string",
      "x|safe",
      "x|replace('a', '-')",
      "x|tojson",
      "x|list",
      "x|reverse",
      "x|first",
      "x|join('-')",
      "x|batch(2)|list",
      "x|slice(2)|list",
      "x|unique|list",
      "x|sort",
      "[x]|min",
      "[x]|max",
      "x|map('upper')|list",
      "x|select|list",
      "x|wordcount ~ x",
      "[x]|groupby(0)",
      "{x: x}|dictsort",
      "{x: x}|items|list",
      "{x: x}",
      "{x: x}|tojson",
      "[x, [x, (x,)]]",
      "x.capitalize()",
      "x.casefold()",
      "x.center(40)",
      "x.join(['-', '-'])",
      "x.ljust(40)",
      "x.lower()",
      "x.lstrip()",
      "x.partition('a')",
      "x.replace('a', '-')",
      "x.rjust(40)",
      "x.rpartition('a')",
      "x.rsplit('a')",
      "x.rstrip('c')",
      "x.split()",
      "x.split('a')",
      "x.splitlines()",
      "x.splitlines(true)",
      "x.strip('c')",
      "x.swapcase()",
      "x.title()",
      "x.upper()",
      "x.zfill(40)",
      "'%s' % x",
      "'%r' % x",
      "'%(k)s' % {'k': x}",
      "'%s'|format(x)",
      "'{}'.format(x)",
      "'{!r}'.format(x)",
      "'{0[0]}'.format(x)",
      "'{k:-^40}'.format(k=x)",
      "'{:{}}'.format('o', x[1:1] ~ 5) ~ x",
      "x ~ x",
      "x + x",
      "x * 3",
      "x[1:]",
      "x[::-1]",
      "x[::2]",
      "x[0]",
      "x[-2]",
      "[x][0]",
      "{'k': x}.k",
      "[x] + [x]",
      "[x]|attr('count') is defined ~ x",
      "namespace(k=x).k",
      "dict(k=x)",
      "cycler(x).next()",
      "joiner(x)() ~ x",
      "x if x else ''",
      "x or ''",
      "'' or x",
      "x and x",
      "x|default('')",
      "none|default(x, true)",
      "x.removeprefix('-')",
      "x.removesuffix('-')",
      "x|urlencode ~ x",
      "{'k': x}.items()",
      "{'k': x}.values()",
      "{x: 1}.keys()",
      "[x]|map('trim')|list",
      "[[x]]|sum(start=[])",
      "[{'k': x}]|map(attribute='k')|list",
      "[{'k': x}]|selectattr('k')|list",
      "[{'k': x}]|groupby('k')",
  };
  for (const char* const expression : kExpressions) {
    for (const std::string& source : {std::string("{{ ") + expression + " }}",
                                      std::string("{% set s %}{{ ") + expression + " }}{% endset %}{{ s[:] }}",
                                      std::string("{% macro m(a) %}{{ a }}{% endmacro %}{{ m(") + expression + ") }}",
                                      std::string("{% for i in [") + expression + "] %}{{ i }}{% endfor %}"}) {
      const auto parsed = Template::Parse("t", source);
      ASSERT_TRUE(parsed.ok()) << source << ": " << parsed.status();
      const absl::StatusOr<Text> text = (*parsed)->Render(LoadJson(context, /*foreign=*/true).dict(), 0);
      ASSERT_TRUE(text.ok()) << source << ": " << text.status();
      const std::string snowman = "\u2603";
      size_t seen = 0;
      for (size_t at = text->bytes().find(snowman); at != std::string::npos; at = text->bytes().find(snowman, at + 1)) {
        EXPECT_TRUE(text->IsForeign(at) && text->IsForeign(at + 2)) << source << " at byte " << at;
        ++seen;
      }
      EXPECT_GT(seen, 0u) << source << " gave " << text->bytes();
    }
  }
}

}  // namespace
}  // namespace fastdecode::jinja
