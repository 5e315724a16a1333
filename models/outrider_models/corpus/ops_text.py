"""Operations on text: one text."""

from outrider_models.corpus.op import Op, op

_VOWELS = "aeiou"
STEPS: tuple[Op, ...] = (
    op("upper", "convert the text to upper case | make the text upper case", "result.upper()",
        lambda r, k: "".join(map(str.upper, r))),
    op("lower", "convert the text to lower case | make the text lower case", "result.lower()",
        lambda r, k: "".join(map(str.lower, r))),
    op("strip", "strip spaces from both ends | trim the text", "result.strip()", lambda r, k: r.lstrip().rstrip()),
    op("nospace", "remove all spaces | delete every space", "result.replace(\" \", \"\")",
        lambda r, k: "".join(x for x in r if x != " ")),
    op("swap", "replace spaces with dashes | turn each space into a dash", "result.replace(\" \", \"-\")",
        lambda r, k: "-".join(r.split(" "))),
    op("reverse", "reverse the text | write the text backwards", "result[::-1]",
        lambda r, k: "".join(reversed(r))),
    op("novowel", "remove the vowels | delete every vowel", "\"\".join(c for c in result if c not in \"aeiou\")",
        lambda r, k: "".join(c for c in r if _VOWELS.find(c) < 0)),
    op("letters", "keep only letters | remove everything but letters",
        "\"\".join(c for c in result if c.isalpha())", lambda r, k: "".join(filter(str.isalpha, r))),
    op("delete", "remove every '{c}' | delete the letter '{c}'", "result.replace('{c}', \"\")",
        lambda r, c: "".join(r.split(c))),
    op("first", "take the first {k} characters | keep only the first {k} characters", "result[:{k}]",
        lambda r, k: "".join(list(r)[:k])),
    op("skip", "skip the first {k} characters | drop the first {k} characters", "result[{k}:]",
        lambda r, k: "".join(list(r)[k:])),
    op("repeat", "repeat the text {k} times | write the text {k} times", "result * {k}",
        lambda r, k: "".join([r] * k)),
)  # fmt: skip
ENDS: tuple[Op, ...] = (
    op("text", "return the text | return the resulting text", "result", lambda r, k: r),
    op("length", "return the length | return the number of characters", "len(result)", lambda r, k: len(list(r))),
    op("vowels", "return the number of vowels | return how many vowels there are",
        "sum(c in \"aeiou\" for c in result)", lambda r, k: len([c for c in r if _VOWELS.find(c) >= 0])),
    op("words", "return the list of words | return the words as a list", "result.split()",
        lambda r, k: [w for w in r.replace("\t", " ").split(" ") if w]),
    op("number", "return the number of words | return how many words there are", "len(result.split())",
        lambda r, k: len([w for w in r.split(" ") if w])),
    op("letter", "return how often '{c}' occurs | return the count of '{c}'", "result.count('{c}')",
        lambda r, c: len([x for x in r if x == c])),
)  # fmt: skip
