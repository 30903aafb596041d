"""Cases: output, undefined values, literals, and how Python prints values."""

from template_cases import expressions, rows, templates

NESTED = {"a": [1, 2.5, None, True, "x'y"], "b": {"c": {"d": []}}, "e": {}}
# Keys that are names of methods, too, or otherwise odd.
CLASHES = {
    "items": "I", "a": {"b": [1, {"x": 2}]}, "w s": "ws", "get": "G", "1": "one", "__class__": "C", "n": "nm",
    "_p": "p", "update": "U", "if": "IF",
}
METHOD_NAMES = {
    "values": "V", "pop": "P", "index": "X", "count": 3, "keys": "K", "p": {"items": {"type": "t"}, "b": {"type": "u"}},
}

GROUPS = {
    "output/text": expressions(
        "''", "x,1", "x,",
        x="X",
    ) + templates(
        "", "plain", "a{{ x }}b", "{{x}}{{ x }}{{  x  }}", "{ x } {% if x %}y{% endif %} }} %} #}", "{", "{ {", "}}",
        "{{ x }}\n{{ x }}\n", "naïve 你好 🙂 {{ x }}", "{% print x %}", "{% print x, 1 %}", "{% print 'a' %}b",
        "a # b ## c", "$x ${x} <% x %>",
        x="X",
    ),
    "undefined/output": rows(
        "a", "[a]", "a ~ 'x'", "'x' ~ a ~ 1", "a, 1", "{'k': a}", "not a", "a or 'o'", "a and 'o'",
        "'t' if a else 'f'", "a == b", "a == none", "a != 1", "a == a", "a is none", "a is defined", "a is undefined",
        "a is string", "a is iterable", "a is sequence", "a is mapping", "a is callable", "a in [1]", "a in [b]",
        "1 in a", "'x' in a", "a not in [1]", "a is sameas b", "a|default('d')", "a|length", "a|list", "a|join(',')",
        "a|upper", "a|trim", "a|string", "a|first", "a|last", "a|sum", "a|sort", "a|unique|list",
        "a|map('upper')|list", "a|selectattr('x')|list", "a|items|list", "a|replace('a', 'b')", "a|e", "a|safe",
        "a|title", "a|count", "a|min", "a|max", "a|batch(2)|list", "a|groupby('x')", "a|wordcount", "a|center(4)",
        "a|reverse|list", "a|d|d('z')", "a|urlencode", "a|truncate(3)", "a|capitalize", "a|lower",
    ) + expressions(
        "a|tojson", "[a]|tojson", "a|int", "a|int(5)", "a|float", "a|abs", "a|round", "a|dictsort", "a|indent",
        "a|format(1)", "a|attr('x')",
    ),
    "undefined/errors": rows(
        "'%s' % a", "[1, 2][a]", "{'k': 1}[a]", "d.b|default('d')", "d.b", "d.b is defined", "d['b'] is undefined",
        "l[5]", "l[5] is defined", "l[-9]|d('x')", "l.x|d('x')", "'abc'[9]|d('x')", "'abc'.x", "5 .x|d('y')", "none.x",
        "none['x']", "false and a.b", "true or a.b", "'x' if true else a.b", "(1 if false)", "1 if false",
        "(1 if false) is defined", "[1 if false]", "d.b ~ d.c", "a == d.b", "a|default(d.b)|default('q')",
        "namespace().x", "'x'.join(a)", "[a]|join(',')", "dict(a=a)",
        d={"k": 1}, l=[1, 2],
    ) + expressions(
        "a.b", "a['b']", "a[0]", "a.b.c", "a()", "a + 1", "1 + a", "'x' + a", "a - 1", "a * 2", "2 * a", "a / 2",
        "2 / a", "a // 2", "a % 2", "a ** 2", "-a", "+a", "a < 1", "1 < a", "a >= b", "a[1:]", "[1, 2][a:]",
        "range(a)", "a|nosuch", "'x' in a.b", "a.b is defined", "a.b|default('d')", "d.b.c|default('e')",
        "d.b.c is defined", "none.x.y", "none()", "a > 1 and false", "(1 if false).x", "namespace().x.y",
        "'x'.startswith(a)", "'a'.replace(a, 'b')", "', '.join([a])", "[a, 1]|sum", "raise_exception(a)",
        d={"k": 1},
    ),
    "undefined/statements": templates(
        "{% for x in a %}x{% else %}none{% endfor %}", "{% if a %}x{% endif %}", "{% if not a %}x{% endif %}",
        "{% set b = a %}{{ b is defined }}", "{% set b = a %}{{ b.c }}", "{% for x in d.b %}x{% endfor %}|",
        "{% for x in d.b.c %}x{% endfor %}", "{% for k, v in a.items() %}x{% endfor %}",
        "{% for k, v in a|items %}x{% else %}e{% endfor %}",
        "{% if a == 'x' %}1{% elif a is not defined %}2{% endif %}", "{% if a.b %}{% endif %}",
        "{% with x = a %}{{ x is defined }}{% endwith %}",
        "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m(a) }}{{ m() }}{{ m(1) }}",
        "{% if d.b is defined and d.b.c %}1{% else %}2{% endif %}",
        d={"k": 1},
    ),
    "literals/numbers": rows(
        "0", "1", "42", "00", "0_0", "1_000", "1_0_0", "0x1F", "0XFF", "0xde_ad", "0b101", "0B11", "0b_1", "0o17",
        "0O7", "1.0", "1.5", "1_0.2_5", "1e3", "1E3", "1.5e-3", "1e+2", "0e0", "0.0", "-0.0", "1e16", "1e15", "1e-5",
        "1e-4", "0.0001", "0.00001", "123456789012345678", "9223372036854775807", "9223372036854775808",
        "-9223372036854775809", "18446744073709551616", "1.7976931348623157e308", "5e-324", "1e400", "-1e400",
        "0.1 + 0.2", "1.0e5", "100000000000000000000.0", "1e22", "1e21", "123456789.123456789", "3.14159265358979",
        "2.5e-8", "1.x", "1.e5", "1._0", "5.5.5", "1.real", "1 .real", "(1).real", "3.numerator",
    ) + expressions(
        ".5", "1.", "007", "08", "1__0", "0x", "0b2", "1_", "1abc",
    ),
    "literals/constants": rows(
        "true", "True", "TRUE", "false", "False", "none", "None", "null", "nil", "true and none",
        "[true, false, none]", "true + true", "true == 1", "false == 0", "none == false", "true is sameas true",
        "1 is sameas true", "true.x", "none|string", "not none", "true|string", "-true", "true|int", "true ~ none",
        "NONE", "nan", "inf",
    ),
    "literals/strings": expressions(
        "'a'", "\"a\"", "'it\\'s'", "\"say \\\"hi\\\"\"", "'\"'", "\"'\"", "''", "'a\\nb'", "'a\\tb'", "'a\\\\nb'",
        "'\\r'", "'\\a\\b\\f\\v'|tojson", "'\\0'|tojson", "'\\x41'", "'\\u00e9'", "'\\U0001F600'", "'\\101'",
        "'\\18'|tojson", "'\\777'", "'\\N{BULLET}'", "'\\N{LATIN SMALL LETTER E WITH ACUTE}'", "'\\N{nosuch}'",
        "'\\q'", "'\\ '", "'\\é'", "'é\\n'", "'\\x4'", "'\\u12'", "'\\U00110000'", "'\\ud83d\\ude00'", "'\\ud800'",
        "'\\\n'", "'a\nb'", "'a\\\nb'", "'你好 🙂'", "'{{ x }}'", "'}}'", "'%}'", "'{#'", "'#}'", "'{% raw %}'",
        "'a' 'b'", "'a' \"b\" 'c'", "'a'\n'b'", "'a' 'b'|upper", "'a' 'b'.upper()", "'a' ~ 'b' 'c'", "'a' 1", "'a' b",
        "'a", "'a\\'", "\"a'", "'\\x00'|length", "'\\xe9'|length", "'🙂'|length", "'e\u0301'|length", "'\\u0000a'",
        "r'a'", "f'a'", "b'a'", "'''a'''", "`a`", "'a\r\nb'|tojson", "'a\rb'|tojson", "'\u2028'|tojson",
        "'\\r\\n'|tojson",
    ),
    "literals/containers": rows(
        "[]", "[1]", "[1,]", "[1, 2]", "()", "(1,)", "(1)", "(1, 2)", "(1, 2,)", "{}", "{'a': 1}", "{'a': 1,}",
        "{'a': 1, 'b': [2]}", "{a: 1}", "{1: 2, none: 3, true: 4}", "{1: 'a', 1.0: 'b', true: 'c'}",
        "{'a': 1, 'a': 2}", "{(1, 2): 3}", "[[[]]]", "[1, [2, (3, {'k': (4,)})]]", "{'a': {'b': {'c': 1}}}['a']['b']",
        "{'a': {'b': {'c': 1}}}.a.b", "[1, 2, 3][1]", "(1, 2)[0]", "{'x': 1}.x", "{'a':{'b':1}}", "1, 2, 3",
        "'a', 'b'", "[1,2]|length", "{'a':1}|length", "()|length",
        a="k",
    ) + expressions(
        "[,]", "[1 2]", "(,)", "{[1]: 2}", "{{}: 1}", "{'a'}", "{'a' 1}", "{'a': }", "{,}", "[1, 2", "[1, 2)",
        "{'a': 1]", "(1, 2]", "]", ")", "}", "[1, *x]", "{**x}", "[x for x in y]",
        a="k",
    ),
    "printing/strings": expressions(
        "['a']", "[\"a'b\"]", "['a\"b']", "['a\\'b\"c']", "['\\n\\t\\r\\\\']", "['\\x00\\x1f\\x7f']", "['é你🙂']",
        "['\\u200b\\u00a0']", "['\\ufeff\\u2028']", "['\\x80\\xa0\\xad']", "['\\ue000']", "['\\U000e0001']",
        "['\\u0378']", "['\\U0010ffff']", "['\\u3000']", "['e\\u0301']", "('a',)", "{'k\\n': 'v\\''}",
        "{\"it's\": \"a\"}", "[s]", "[[s]]", "{s: s}", "s", "['\\u2764\\ufe0f']", "['\\ufffd\\ufffe']",
        s="line\n\"quoted\" 'single' \\ back\x07",
    ),
    "printing/numbers": rows(
        "[1.0, 0.5, 1e16, 1e-7]", "x", "[y]", "z", "[1e100, -1e-100]", "12345678901234567890123", "[true, none]",
        "1.0|string ~ 1", "f", "[0.1, 1e15, 1e17, 123456.789e3]", "100 * 1.1", "1/3", "2/3", "1e23",
        "9007199254740993.0", "4.35", "0.3", "1.1 * 3", "1e16 + 1", "big", "[big, -5]", "5e-7", "1e-10", "0.00012345",
        "n", "-0.0 + 0", "0 * -1.0", "[-0.0]", "1e400", "[1e400, -1e400]", "1e400 - 1e400",
        x=1.0, y=-0.0, z=1e+22, f=0.1, big=18446744073709551615, n=-9223372036854775808,
    ),
    "printing/containers": rows(
        "n", "n.a", "n.b", "[n]", "(n,)", "l", "n.items()", "n.keys()", "n.values()", "[n.e.items()]", "n.e.keys()",
        "(1, 'a', none)", "((),)", "[(), [], {}]", "range(3)", "range(1, 4)", "range(0, 9, 2)", "[range(2)]",
        "namespace()", "namespace(a=1, b='x')", "namespace(n)", "dict(a=1)", "dict(n.b, z=2)", "dict([('a', 1)])",
        "dict(a=1) == {'a': 1}", "l|string|length", "n|string", "{'a': n.a[:2]}",
        n=NESTED, l=[[1, "a"], {"k": "v"}, []],
    ),
    "slices/lists": rows(
        "l[1:3]", "l[:2]", "l[2:]", "l[:]", "l[::2]", "l[::-1]", "l[-2:]", "l[:-1]", "l[-3:-1]", "l[5:]", "l[9:]",
        "l[3:1]", "l[3:1:-1]", "l[::-2]", "l[-1::-1]", "l[1::2]", "l[:3:2]", "l[-100:100]", "l[100:-100:-1]",
        "l[none:2]", "l[true:]", "l[0]", "l[-1]", "l[-5]", "l[4]", "l[5]", "l[-6]", "l['1']", "l[1.0]", "l[true]",
        "l[none]", "l[1:3][0]", "l[1:][1:]", "l[::2][::-1]", "l[1, 2]", "l[]", "l[:]|length", "(1, 2, 3)[1:]",
        "(1, 2, 3)[::-1]", "(1, 2, 3)[:1]", "range(10)[-1]", "range(10)[2:8][1]",
        "range(3)[5]", "{'a': 1}[1:]", "5[1:]", "none[1:]", "l[i]", "l[i:i + 2]", "l[-i:]", "l[::i]", "l[i - 1]",
        "l[:l|length - 1]",
        l=["a", "b", "c", "d", "e"], i=1,
    ) + expressions(
        "l[::0]", "l['a':]", "l[1.0:]", "l[1:2, 3]",
        l=["a", "b", "c", "d", "e"],
    ),
    "slices/strings": rows(
        "s[0]", "s[-1]", "s[1]", "s[4]", "s[5]", "s[1:3]", "s[::-1]", "s[::2]", "s[-3:]", "s[:-2]", "s[3:1]",
        "s[3:1:-1]", "s[10:]", "s[:100]", "'abc'[1]", "'abc'[1:]", "'abc'[::-1]", "''[0]", "''[:1]", "''[::-1]",
        "s[0] ~ s[4]", "s[1:][0]", "'abc'[::-2]", "'abcdef'[-2:-5:-1]", "'abc'[1:2]", "'abc'['0']", "'abc'[1.5]",
        "'a🙂b'[1]", "'a🙂b'[::-1]", "'e\u0301a'[::-1]", "'e\u0301'[0]", "s[-5]", "s[-6]", "s[true]",
        s="né你🙂z",
    ),
    "lookup/dicts": rows(
        "d.items is callable", "d['items']", "d.keys is callable", "d['keys'] is callable", "d.get('items')", "d.a",
        "d['a']", "d.get('a')", "d.get('z')", "d.get('z', 9)", "d.items()", "d.keys()|list", "d.values()|list",
        "d.a.b", "d['a']['b']", "d.a['b']", "d['a'].b", "d.z", "d['z']", "d[1]", "d['1']", "d.1", "d['w s']",
        "d['get']", "e.get is callable", "e['items']()|list", "e.items()|list", "e['get']('x')", "e['update']",
        "e.update is defined", "e['values']()", "d['__class__']", "d.__class__", "d.__class__ is defined",
        "d.copy() == d", "d|length", "'a' in d", "'z' in d", "'items' in d", "d|attr('items') is callable",
        "d|attr('a')", "d|attr('a') is defined", "d['a', 'b']", "d[['a']]", "d[{}]", "d[none]", "d[none] is defined",
        "d.update", "d['update'] is defined", "d.n.upper()", "d['n']['upper']()", "d.n|upper", "d._p", "d['_p']",
        "d.__len__", "d.a.b[0]", "d.a.b.0", "d.a.b.1.x", "d.a.b.9", "d.first", "d.true", "d.none", "d.if", "d.for",
        "d.a .b", "d. a", "d.a\n.b",
        d=CLASHES,
        e={"x": "y"},
    ) + expressions(
        "d.get('z', default=9)", "d.z.y", "d.'a'", "d.a.", "d..a", "d.[0]", "d.-1", "d.1.5",
        d=CLASHES,
    ),
    "lookup/shadowed": rows(
        "d.values is callable", "d['values']", "d.pop", "d['pop']", "d.index", "d.count", "d.keys is callable",
        "d.keys()|list", "d['keys'] is callable", "d.copy is callable", "d.p.items is callable", "d.p['items'].type",
        "d.p.items.type", "d.get('values')", "d.get('p').b.type",
        d=METHOD_NAMES,
    ) + templates(
        "{% for k in d.p %}{{ k }}:{{ d.p[k].type }} {% endfor %}",
        d=METHOD_NAMES,
    ),
}
