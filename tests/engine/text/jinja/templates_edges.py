"""Cases: numbers and places at the edge of what there is, and what formats make of them."""

from template_cases import expressions, rows, templates

GROUPS = {
    "edges/grouping": rows(
        "'{:08,}'.format(12345)", "'{:03,}'.format(5)", "'{:04,}'.format(5)", "'{:05,}'.format(5)",
        "'{:08,}'.format(-1234)", "'{:+08,}'.format(12345)", "'{:010,.2f}'.format(1234.5)", "'{:010,}'.format(1e20)",
        "'{:030,}'.format(1e20)", "'{:0>10,}'.format(1234)", "'{:0=10,}'.format(1234)", "'{:x=10,}'.format(1234)",
        "'{:=010,}'.format(1234)", "'{:>010,}'.format(1234)", "'{:#012_x}'.format(74565)", "'{:012_x}'.format(74565)",
        "'{:_x}'.format(305419896)", "'{:_X}'.format(3735928559)", "'{:_b}'.format(1023)", "'{:_o}'.format(16777215)",
        "'{:#_x}'.format(1193046)", "'{:_}'.format(12345.678)", "'{:,%}'.format(1234.5)", "'{:,}'.format(true)",
        "'{:_d}'.format(1234567)", "'{:,.0f}'.format(999999.5)", "'{:012_}'.format(5)", "'{:,e}'.format(12345.0)",
    ) + expressions(
        "'{:,x}'.format(1)", "'{:,}'.format('a')", "'{:_s}'.format('a')", "'{:,n}'.format(5)", "'{:_c}'.format(65)",
        "'{:,_}'.format(3)", "'{:,,}'.format(3)", "'{:,b}'.format(3)",
    ),
    "edges/percent": expressions(
        "'%5%' % ()", "'%5%' % (1,)", "'%(a)%' % {'a': 1}", "'%d' % 1e400", "'%d' % ('1e400'|float - '1e400'|float)",
        "'%%' % ()", "'%d%%' % 5",
    ),
    "edges/steps": rows(
        "[1, 2, 3][::2 ** 126]", "[1, 2, 3][1::2 ** 126]", "[1, 2, 3][::-(2 ** 126)]", "'abc'[1::2 ** 100]",
        "'abc'[::-(2 ** 100)]", "'né🙂x'[::2]", "'né🙂x'[::-1]", "'né🙂x'[3:0:-2]", "(1, 2, 3)[::-1]", "'abc'[5:1:-1]",
        "''[::-1]", "'abc'[2 ** 70:]", "range(9)[1::3]|list", "range(5, 3, -(2 ** 100))|list",
        "range(2 ** 100, 2 ** 100 + 2)|list", "range(2 ** 100, 0)|list",
    ),
    "edges/rounding": rows(
        "15|round(-1)", "25|round(-1)", "(-25)|round(-1)", "(-15)|round(-1)", "5|round(-1)", "6|round(-1)",
        "6|round(-39)", "(-6)|round(-1)", "123456789012345678901|round(-3)", "(10 ** 37 * 5)|round(-38)",
        "(10 ** 37 * 5 + 1)|round(-38)", "9007199254740993|round(-1)",
    ),
    "edges/loops": templates(
        "{% for x in [1, 2] %}{{ loop|list|length }}{{ loop|list|length }}{{ loop.previtem }}{% endfor %}",
        "{% for x in [1, 2, 3] %}{{ x }}{{ loop|list|length }}{{ loop.index }}{{ loop.nextitem is defined }}{% endfor %}",
        "{% for x in [1, 2] %}{{ loop|list|length }}{{ loop.last }}{{ loop.revindex }}{{ loop.previtem }}{% endfor %}",
        "{% for ((x)), (y) in [(1, 2)] %}{{ x }}{{ y }}{% endfor %}{% set ((a, (b))) = (1, (2)) %}{{ a }}{{ b }}",
    ),
    "edges/dicts": rows(
        "dict.fromkeys(['a', 'b'])", "dict.fromkeys('ab', 1)", "dict.fromkeys({'a': 1}, [])", "dict.fromkeys([])",
        "dict(**{'a': 1})", "dict.fromkeys is callable", "dict.nosuch is defined", "{}.fromkeys('ab', 2)",
    ) + expressions(
        "dict.fromkeys()", "dict.fromkeys([[]])", "dict.fromkeys(5)", "dict(a=1, **{'a': 2})", "dict(**{1: 2})",
    ),
    "edges/searches": rows(
        "'aabaab'.rfind('aab')", "'aabaab'.rfind('aab', 0, 5)", "'aaaa'.rfind('aa')", "'abc'.rfind('', 1, 2)",
        "''.rfind('')", "'aXbXc'.rsplit('X', 1)", "'aaaa'.rsplit('aa')", "'aXXb'.rpartition('XX')",
        "'né🙂né'.rfind('é')", "'né🙂né'.find('é', 2)", "'' in ''", "'' in 'a'", "'ab' in 'aab'", "'ba' in 'aab'",
        "'aabab'.count('ab')", "'abab'.replace('ab', 'x', 1)",
    ),
}
