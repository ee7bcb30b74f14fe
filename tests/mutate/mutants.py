# SPDX-License-Identifier: Apache-2.0
"""Every mechanical change of a C file that mutate.py knows of, one at a time.

A mutant is (operator, start, end, new text) on the text of the file. Comments, strings,
preprocessor lines and assertions are left alone: an assertion is a test, not the thing tested.
"""
import re

RELATIONS = {'<': '<=', '<=': '<', '>': '>=', '>=': '>', '==': '!=', '!=': '=='}
BINARY = {'+': '-', '-': '+', '&': '|', '|': '&', '<<': '>>', '>>': '<<', '%': '+'}
ASSIGN = {'+=': '-=', '-=': '+=', '|=': '&=', '&=': '|='}
STEP = {'++': '--', '--': '++'}
TOKEN = re.compile(r'''
    (?P<word>[A-Za-z_]\w*) | (?P<number>0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*) |
    (?P<punct>->|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|\+=|-=|\|=|&=|\*=|/=|%=|\^=|.)
''', re.X | re.S)
KEYWORDS = {'return', 'case', 'if', 'while', 'for', 'else', 'do', 'sizeof', 'goto', 'switch'}


def blank(text):
    """The same length, with comments, strings, # lines and assertions as spaces."""
    def spaces(m):
        return re.sub(r'[^\n]', ' ', m.group(0))

    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', spaces, text,
                  flags=re.S)
    text = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', spaces, text, flags=re.M)
    out, at = [], 0
    for m in re.finditer(r'\bMM_ASSERT\s*\(', text):
        if m.start() < at:
            continue
        depth, i = 1, m.end()
        while depth:
            depth += {'(': 1, ')': -1}.get(text[i], 0)
            i += 1
        out.append(text[at:m.start()])
        out.append(re.sub(r'[^\n]', ' ', text[m.start():i]))
        at = i
    return ''.join(out) + text[at:]


def function_at(text, offset):
    """Name of the function, or of the table, that holds the offset."""
    name = '?'
    for m in re.finditer(r'^(?:[A-Za-z_][^\n;{}]*?\b(\w+)\(|static const[^\n;]*?(\w+)[ \[=])',
                         text[:offset], re.M):
        name = m.group(1) or m.group(2)
    return name


def closing(code, i):
    """Index of the bracket that closes the one at i."""
    depth = 0
    while i < len(code):
        depth += {'(': 1, ')': -1}.get(code[i], 0)
        if not depth:
            return i
        i += 1
    raise ValueError('unbalanced')


def tokens(code):
    return [(m.lastgroup, m.group(0), m.start(), m.end()) for m in TOKEN.finditer(code)
            if not m.group(0).isspace()]


def of_token(kind, word, start, end, before, after):
    """Mutants of one token, which stands between two others."""
    value_before = before and (before[0] in ('word', 'number') or before[1] in (')', ']')) and \
        before[1] not in KEYWORDS
    if kind == 'punct':
        if word in RELATIONS:
            yield 'relation', start, end, RELATIONS[word]
        elif word in ('&&', '||'):
            yield 'logic', start, end, '||' if word == '&&' else '&&'
        elif word in BINARY and value_before:
            yield 'arithmetic', start, end, BINARY[word]
        elif word in ASSIGN:
            yield 'assignment', start, end, ASSIGN[word]
        elif word in STEP:
            yield 'step', start, end, STEP[word]
        elif word == '!' and not value_before and after and after[1] != '!':
            yield 'negation', start, end, ' '
    elif kind == 'number':
        digits = re.match(r'(0[xX][0-9a-fA-F]+|\d+)(.*)', word)
        value = int(digits.group(1), 0)
        yield 'constant', start, end, f'{value + 1}{digits.group(2)}'
        if value:
            yield 'constant', start, end, f'{value - 1}{digits.group(2)}'
    elif word in ('true', 'false'):
        yield 'constant', start, end, 'false' if word == 'true' else 'true'
    elif word.endswith(('_add_head', '_add_tail')):
        other = word[:-4] + ('tail' if word.endswith('head') else 'head')
        yield 'list end', start, end, other


def of_conditions(code):
    for m in re.finditer(r'\b(if|while)\s*\(', code):
        end = closing(code, m.end() - 1)
        yield 'condition', m.end(), end, f'!({code[m.end():end]})'


def of_statements(code):
    """Whole statements of a line or more, but for declarations."""
    for m in re.finditer(r'^([ \t]+)([^\s{}][^;{}]*);', code, re.M):
        body, start, end = m.group(2), m.start(2), m.end()
        if body.startswith(('if', 'for', 'while', 'else', 'switch', 'do', 'case', 'default')):
            continue
        if body.startswith('return'):
            value = body[6:].strip()
            if not value:
                yield 'deletion', start, end, ';'
            elif value in ('true', 'false'):
                pass    # a constant
            elif re.fullmatch(r'-?\d+', value):
                pass
            else:
                yield 'return', start, end, 'return 0;'
                yield 'return', start, end, f'return !({value});'
            continue
        if body in ('break', 'continue') or re.match(r'(\*?[\w.\->\[\]() ]+?)\s*(=|[+\-|&^]=|<<=|>>=)[^=]',
                                                     body) and not declares(body):
            yield 'deletion', start, end, ';'
        elif re.match(r'[\w.\->\[\]]+(\+\+|--)|(\+\+|--)\w', body) or \
                re.match(r'\w+\(', body) and not declares(body):
            yield 'deletion', start, end, ';'


def declares(body):
    head = re.split(r'[=(]', body, maxsplit=1)[0].strip()
    return bool(re.match(r'(const |static |struct |enum |unsigned |uint|int|bool|size_t|void)', body)) or \
        bool(re.search(r'\w\s+\*?\w+(\[\w*\])?$', head))


def of_file(text):
    """All mutants of a file: list of (operator, start, end, new)."""
    code = blank(text)
    first = re.search(r'^\{', code, re.M)       # prototypes and tables before are declarations
    found = []
    # A larger array is no other program.
    sizes = {m.start(1) for m in re.finditer(r'\[(\d+)\]', code)
             if declares(code[code.rfind('\n', 0, m.start()) + 1:m.start()].strip())}
    list_ = tokens(code)
    for i, (kind, word, start, end) in enumerate(list_):
        if first and start < first.start():
            continue
        before = list_[i - 1] if i else None
        after = list_[i + 1] if i + 1 < len(list_) else None
        found += [m for m in of_token(kind, word, start, end, before, after)
                  if start not in sizes]
    found += of_conditions(code)
    found += of_statements(code)
    return sorted(set((op, s, e, new) for op, s, e, new in found), key=lambda m: (m[1], m[2], m))
