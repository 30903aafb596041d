"""Cases: the methods of Python's values that a template can call."""

from template_cases import expressions, rows, templates

TEXTS = [
    "", "a", "A", "aB", "1", "a1", " ", "é", "²", "½", "٣", "🙂", "A b", "_a", "\n", "ǅ", "你", "Ⅷ", "\xa0", "1a",
    "Ab Cd", "ªº",
]

GROUPS = {
    "methods/split": rows(
        "'a b  c'.split()", "' a b '.split()", "'a,b,,c'.split(',')", "'a,b,c'.split(',', 1)", "'a,b,c'.split(',', 0)",
        "'a,b,c'.split(',', -1)", "'a b c'.split(none, 1)", "' a  b  c '.split(none, 1)", "'a b c'.split(maxsplit=1)",
        "'a-b'.split(sep='-')", "''.split()", "''.split(',')", "'a\\n\\tb\\u00a0c\\u3000d'.split()",
        "'a\\u200bb'.split()", "'<t>x</t>'.split('</t>')", "'a||b'.split('||')", "'aaa'.split('aa')",
        "'a</think>b</think>c'.split('</think>')[-1]", "'a,b'.split(',', true)", "'🙂a🙂'.split('🙂')",
        "'a\\x1cb\\x85c'.split()", "'a b c'.rsplit()", "'a,b,c'.rsplit(',', 1)", "'a b c '.rsplit(none, 1)",
        "'a,b,c'.rsplit(',', maxsplit=1)", "'aaa'.rsplit('aa')", "''.rsplit(',')", "' a b  '.rsplit(none, 0)",
        "' a b  '.split(none, 0)", "'a,b'.rsplit(',', 0)", "'a\\nb\\r\\nc\\rd'.splitlines()",
        "'a\\nb\\n'.splitlines()", "'a\\n\\nb'.splitlines(true)", "'a\\r\\nb'.splitlines(keepends=true)",
        "''.splitlines()", "'\\n'.splitlines()", "'a\\x0bb\\x0cc\\x1cd\\x1ee\\x85f\\u2028g\\u2029h'.splitlines()",
        "'a'.splitlines(false)", "'a\\nb'.splitlines(1)", "'a-b-c'.partition('-')", "'abc'.partition('-')",
        "'a-b-c'.rpartition('-')", "'abc'.rpartition('-')", "'a::b'.partition('::')[2]",
    ) + expressions(
        "'abc'.split('')", "'abc'.split(1)", "'a b'.split(' ', 'x')", "'a b'.split(' ', 1, 2)",
        "'a,b'.split(',', 1.0)", "'abc'.partition('')", "'a-b'.partition(sep='-')", "'a-b'.partition(1)",
    ),
    "methods/strip": rows(
        "'  a  '.strip() ~ '|'", "'  a  '.lstrip() ~ '|'", "'  a  '.rstrip() ~ '|'", "'xxaxx'.strip('x')",
        "'xyaxy'.strip('xy')", "'xyaxy'.lstrip('xy')", "'xyaxy'.rstrip('xy')", "' a '.strip('') ~ '|'",
        "' a '.strip(none) ~ '|'", "'\\n\\na\\n'.strip('\\n')", "'\\t\\n\\x0b\\x0c\\r a'.strip()",
        "'\\u00a0\\u2003a\\u3000'.strip()", "'\\u200ba\\ufeff'.strip()|length", "'\\x1c\\x1d\\x1e\\x1f\\x85a'.strip()",
        "'éaé'.strip('é')", "'🙂a🙂'.strip('🙂')", "'  '.strip() == ''", "'<<a>>'.strip('<>')",
        "'prefix-a'.removeprefix('prefix-')", "'a'.removeprefix('b')", "'a.txt'.removesuffix('.txt')",
        "'a'.removesuffix('')", "'aa'.removeprefix('a')", "'aaa'.removesuffix('aa')",
    ) + expressions(
        "'a'.strip(1)", "'a'.strip('a', 'b')", "'a'.strip(chars='a')", "'a'.removeprefix(1)", "'a'.removeprefix()",
        "'a'.removeprefix(('a', 'b'))",
    ),
    "methods/search": rows(
        "'abc'.startswith('a')", "'abc'.startswith('b')", "'abc'.startswith(('x', 'a'))", "'abc'.startswith('')",
        "'abc'.startswith('b', 1)", "'abc'.startswith('c', -1)", "'abc'.startswith('b', 1, 2)",
        "'abc'.startswith('bc', 1, 2)", "'abc'.startswith(())", "'abc'.startswith('', 5)",
        "'abc'.startswith('a', none)", "'abc'.endswith('c')", "'abc'.endswith(('x', 'bc'))",
        "'abc'.endswith('b', 0, 2)", "'abc'.endswith('')", "'é🙂'.endswith('🙂')", "'</think>'.endswith('>')",
        "'abc'.endswith('c', -1)", "'abcb'.find('b')", "'abc'.find('x')", "'abcb'.find('b', 2)",
        "'abcb'.find('b', -1)", "'abcb'.find('b', 0, 1)", "'abc'.find('')", "'abc'.find('', 3)", "'abc'.find('', 4)",
        "'né🙂x'.find('x')", "'abcb'.rfind('b')", "'abc'.rfind('')", "'abcb'.rfind('b', 0, 3)", "'abc'.index('c')",
        "'abcb'.rindex('b')", "'abc'.find('b', none, 2)", "'aaa'.count('a')", "'aaa'.count('aa')", "'abc'.count('')",
        "'aaa'.count('a', 1)", "'aaa'.count('a', 1, 2)", "'né🙂é'.count('é')", "'abc'.count('', 2)",
        "'abc'.count('', 4)", "'abc'.find('c', 0, -1)", "'aaa'.replace('a', 'b')", "'aaa'.replace('a', 'b', 2)",
        "'aaa'.replace('a', 'b', 0)", "'aaa'.replace('a', 'b', -1)", "'abc'.replace('', '-')",
        "'abc'.replace('', '-', 2)", "''.replace('', 'x')", "'aXbX'.replace('X', '')", "'aaa'.replace('aa', 'b')",
        "'é'.replace('é', '🙂')", "'a\\nb'.replace('\\n', ' ')", "'abab'.replace('ab', 'ba').replace('b', '')",
    ) + expressions(
        "'abc'.startswith(['a'])", "'abc'.startswith(1)", "'abc'.startswith()", "'abc'.startswith((1,))",
        "'abc'.endswith(none)", "'abc'.index('x')", "'abc'.rindex('x')", "'abc'.find(1)", "'abc'.find()",
        "'aaa'.count(1)", "'a'.replace(1, 2)", "'a'.replace('a', none)", "'a'.replace('a', 'b', '1')",
        "'a'.replace('a', 'b', count=1)", "'a'.replace('a', 'b', 1.0)",
    ),
    "methods/case": rows(
        "'aBc'.upper()", "'aBc'.lower()", "'aBc dEf'.title()", "'aBc dEf'.capitalize()", "'aBc'.swapcase()",
        "'Straße'.casefold()", "'straße'.upper()", "\"it's a1b x-y_z\".title()", "'ŉ ﬁ ǆ'.title()",
        "'ǆa'.capitalize()", "'ÉA'.lower()", "'ΑΣ ΑΣΑ Σ'.lower()", "'İ'.lower()", "'ß'.swapcase()", "''.title()",
        "'1a a1'.title()", "'éÀ'.swapcase()", "'K'.lower()", "'ΐ'.upper()", "'ﬃ'.casefold()",
        "'ς'.casefold()", "'a\u0301b'.title()", "'ꙋ'.upper()", "'i'.upper()",
    ),
    "methods/predicates": expressions(
        "'a'.isupper(1)", "'a'.isnosuch()",
    ) + templates(
        "{% for t in texts %}{{ t.isalpha()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isdigit()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isdecimal()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isnumeric()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isalnum()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isspace()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isupper()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.islower()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.istitle()|int }}{% endfor %}",
        "{% for t in texts %}{{ t.isascii()|int }}{% endfor %}",
        texts=TEXTS,
    ),
    "methods/pad": rows(
        "'5'.zfill(3)", "'-5'.zfill(4)", "'+5'.zfill(4)", "'abc'.zfill(2)", "''.zfill(2)", "'--5'.zfill(5)",
        "'a'.ljust(3) ~ '|'", "'a'.rjust(3)", "'a'.center(4) ~ '|'", "'ab'.center(5) ~ '|'", "'a'.ljust(3, '-')",
        "'a'.rjust(3, '-')", "'a'.center(4, '-')", "'ab'.center(5, '-')", "'abc'.center(6, '*')", "'é🙂'.ljust(4, '·')",
        "'abc'.ljust(2)", "'a'.center(-1)",

    ) + expressions(
        "'a'.zfill('2')", "'a'.ljust(3, 'xy')", "'a'.ljust(3, '')", "'a'.rjust(3.0)", "'a'.ljust(width=3)",
    ),
    "methods/join_and_translate": rows(
        "','.join(['a', 'b'])", "''.join([])", "'-'.join('abc')", "', '.join(('a', 'b'))",
        "','.join({'a': 1, 'b': 2})", "','.join(d.values())", "','.join('x'|map('upper'))",
        "'\\n'.join(['a', '', 'b'])", "'🙂'.join(['é', 'ü'])",
        "'a'.decode is defined", "'a'.hex is defined",
        "'a'.len is defined", "'a'.append is defined", "'a'.length",
        d={"k": "v", "l": "w"},
    ) + expressions(
        "','.join([1, 2])", "','.join(['a', none])", "','.join(range(2))", "','.join(5)", "','.join()",
        "','.join(['a'], ['b'])", "'a'.contains('a')", "'a'.size()", "'abc'.reverse()", "'abc'.includes('a')",
        "'a'.trim()", "'a'.toUpperCase()", "'a'.copy()",
    ),
    "methods/format": rows(
        "'{} {}'.format('a', 1)", "'{0} {1} {0}'.format('a', 'b')", "'{a} {b}'.format(a=1, b='x')",
        "'{} {a}'.format(1, a=2)", "'{{}} {}'.format(1)", "'{!r}'.format('a')", "'{!s}'.format('a')",
        "'{!a}'.format('é')", "'{0[0]}'.format([1])", "'{0[k]}'.format({'k': 1})", "'{a[k][0]}'.format(a={'k': [5]})",
        "'{:>5}|'.format('a')", "'{:<5}|'.format('a')", "'{:^5}|'.format('a')", "'{:*^7}'.format('ab')",
        "'{:.2}'.format('abc')", "'{:5.1}|'.format('abc')", "'{:d}'.format(5)", "'{:05d}'.format(-42)",
        "'{:+d}'.format(5)", "'{: d}'.format(5)", "'{:,}'.format(1234567)", "'{:_}'.format(1234567)",
        "'{:x} {:X} {:o} {:b}'.format(255, 255, 8, 5)", "'{:#x} {:#o} {:#b}'.format(255, 8, 5)", "'{:c}'.format(65)",
        "'{:.2f}'.format(3.14159)", "'{:.0f}'.format(2.5)", "'{:8.3f}|'.format(2.5)", "'{:e}'.format(12345.678)",
        "'{:g}'.format(0.0001)", "'{:g}'.format(1e10)", "'{:.3g}'.format(1234.5)", "'{:,.2f}'.format(1234567.891)",
        "'{:f}'.format(5)", "'{:5}|'.format(5)", "'{:5}|'.format('a')", "'{:5}|'.format(true)", "'{}'.format(true)",
        "'{}'.format(none)", "'{}'.format([1, 'a'])", "'{}'.format(1.0)", "'{:.3}'.format(2.0)",
        "'{:{}}|'.format('a', 4)", "'{:{w}.{p}f}|'.format(3.14159, w=8, p=2)", "'{:>{w}}'.format('a', w=3)",
        "'{:=+6d}'.format(5)", "'{:06.2f}'.format(-1.5)", "'{:n}'.format(5)", "'{:é>3}'.format('a')",
        "'{:10}|'.format('é🙂')", "'{}'.format(nosuch)", "'{:<3}|{:>3}'.format(1, 2)", "'{0:{1}}'.format(5, '03d')",
        "'{a.b}'.format(a=1)", "'{a!r:>5}'.format(a='x')", "'{:G} {:E}'.format(1e-10, 1.5)", "'{}'.format(1e16)",
        "'{:,}'.format(1234.5)", "'{:x}'.format(-255)", "'{:.3f}'.format(true)", "'{:-^9,d}'.format(1234)",
        "'a{}b{}c'.format(1, 2)", "'%s {}'.format(1) % 2", "'{}'.format(*['a'])", "'{x}'.format(**{'x': 1})",
    ) + expressions(
        "'{}'.format()", "'{1}'.format(1)", "'{a}'.format()", "'{} {0}'.format(1)", "'{'.format()", "'}'.format()",
        "'{!x}'.format('a')", "'{:d}'.format(5.5)", "'{:d}'.format('a')", "'{:s}'.format(5)", "'{:5}'.format(none)",
        "'{:5}'.format([1])", "'{:q}'.format(5)", "'{ a }'.format(a=1)",
    ) + templates(
        "{{ '{:%}'.format(0.25) }}", "{{ '{:.1%}'.format(0.256) }}",
    ),
    "methods/lists": rows(
        "[1, 2, 1].index(2)", "[1, 2, 1].index(1, 1)", "[1, 2, 1].count(1)", "[1, 1.0, true].count(1)", "[].count(1)",
        "[1, 2].copy()", "(1, 2).index(2)", "(1, 2, 1).count(1)", "[1, 2].length", "[1, 2].first",
        "[[1], [1]].count([1])", "['a'].index('a', -1)",
    ) + expressions(
        "[1, 2].index(5)", "[1, 2, 1].index(1, 1, 2)", "[1].count()", "(1, 2).index(3)", "(1, 2).copy()",
        "[1, 2].len()", "[1, 2].join(',')", "[1].push(2)",
    ),
    "methods/dicts": rows(
        "d.get('a')", "d.get('z')", "d.get('z', 1)", "d.get(1)", "d.get(none)", "d.items()|list", "d.keys()|list",
        "d.values()|list", "d.items()", "d.keys()", "d.values()", "d.items()|length", "d.keys()|first", "d.keys()[0]",
        "d.values()|sort", "'a' in d.keys()", "d.keys() == ['a', 'b']", "d.keys()|list == ['a', 'b']",
        "d.copy()", "d.get('a').upper()",
        "d.get('z', {}).get('b', 'c')", "d.items()|map('first')|list", "d.items()|sort(attribute=1)",
        "d.items() is iterable", "d.items() is sequence", "d.items() is mapping", "d.keys() is string",
        "d.items()|list|length", "d | length", "(d.items()|list)[0][1]", "d.keys()|join(', ')",
        "d|items|list == d.items()|list", "d.keys()|reverse|list", "not {}.items()", "{}.keys()|list", "d.length",
        "d.size",
        d={"a": "x", "b": "y"},
    ) + expressions(
        "d.get()", "d.get('a', 1, 2)", "d.get([1])", "d.items(1)", "d.has_key('a')", "d.get('a', {}).get('b')",
        "d.values()|sum", "d.items()|dictsort", "d.iteritems()", "d.toString()", "d.get(key='a')",
        d={"a": "x", "b": "y"},
    ),
    "methods/numbers": rows(
        "(5).real", "(5).imag", "(5).denominator",
        "(1.5).real", "true.real",
        "(5).nosuch", "(5).numerator", "(1.5).imag",
        n=1023,
    ) + expressions(
        "(5).upper()", "none.get('a')",
    ),
}
